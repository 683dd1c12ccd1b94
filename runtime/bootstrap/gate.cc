// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/gate.h"

#include "ir/base/little_endian.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <sys/socket.h>
#include <utility>

namespace agpcs {
namespace {

constexpr std::string_view kLeft = "it left before it had proved the job token";
constexpr std::string_view kOtherProtocol = "it does not speak the protocol of a job's ranks";

}  // namespace

Gate::Gate(Fd listening, ProofTerms terms, std::function<void(const std::string&)> on_refused)
    : listening_(std::move(listening)), terms_(std::move(terms)), refusals_(std::move(on_refused)) {
  set_non_blocking(listening_.get());
}

void Gate::watch(std::vector<pollfd>& fds) const {
  fds.push_back({listening_.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) fds.push_back({stranger.fd.get(), POLLIN, 0});
}

std::vector<Gate::Guest> Gate::turn(const pollfd* polled) {
  std::vector<Guest> guests;
  const bool callers = polled->revents != 0;
  for (Stranger& stranger : strangers_) {
    if ((++polled)->revents != 0) read_from(stranger, guests);
  }
  const auto now = Clock::now();
  for (Stranger& stranger : strangers_) {
    if (stranger.fd.get() < 0 || now - stranger.since <= kPatience) continue;
    const std::string_view late =
        stranger.tls ? "begin TLS after its proof" : "prove the job token";
    refuse(stranger, fmt::format("it did not {} within {} ms", late, kPatience.count()));
  }
  if (callers) take_callers();
  strangers_.remove_if([](const Stranger& stranger) { return stranger.fd.get() < 0; });
  return guests;
}

// Never reads beyond proof and handshake: what follows is the guest's.
void Gate::read_from(Stranger& stranger, std::vector<Guest>& guests) {
  if (stranger.tls) return shake_hands(stranger, guests);
  const bool greeted = !stranger.talk.listener_nonce.empty();
  const std::size_t whole = greeted ? kClaimBytes : kGreetingBytes;
  char buffer[std::max(kGreetingBytes, kClaimBytes)];
  const auto count = recv(stranger.fd.get(), buffer, whole - stranger.in.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return refuse(stranger, kLeft);
  stranger.in.append(buffer, static_cast<std::size_t>(count));
  if (greeted) {
    if (stranger.in.size() == whole) judge(stranger, guests);
    return;
  }
  const std::size_t known = std::min(stranger.in.size(), kProofMagic.size());
  if (std::string_view(stranger.in).substr(0, known) != kProofMagic.substr(0, known)) {
    return refuse(stranger, kOtherProtocol);
  }
  if (stranger.in.size() == whole) greet(stranger);
}

void Gate::greet(Stranger& stranger) {
  auto nonce = random_bytes(kNonceBytes);
  if (!nonce.ok()) return refuse(stranger, nonce.status().message());
  ProofTalk& talk = stranger.talk;
  talk.connector_nonce = stranger.in.substr(kGreetingBytes - kNonceBytes);
  talk.listener_nonce = std::move(*nonce);
  talk.tls = stranger.in == greeting_of(true, talk.connector_nonce);
  if (!talk.tls && stranger.in != greeting_of(false, talk.connector_nonce)) {
    return refuse(stranger, kOtherProtocol);
  }
  stranger.in.clear();
  if (send(stranger.fd.get(), talk.listener_nonce.data(), kNonceBytes, MSG_NOSIGNAL) < 0) {
    refuse(stranger, kLeft);
  }
}

void Gate::judge(Stranger& stranger, std::vector<Guest>& guests) {
  ProofTalk& talk = stranger.talk;
  talk.connector = static_cast<int>(little_endian(std::string_view(stranger.in).substr(0, 4)));
  const bool knows = same_proof(stranger.in, claim_of(terms_, talk));
  const bool other = talk.tls != terms_.tls;
  std::string verdict = kVerdictNo + std::string(kProofBytes, '\0');
  if (knows) {
    verdict = (other ? kVerdictOther : kVerdictYes) +
              proof_of(terms_, other ? ProofOf::kOtherListener : ProofOf::kListener, talk);
  }
  [[maybe_unused]] const auto sent =
      send(stranger.fd.get(), verdict.data(), verdict.size(), MSG_NOSIGNAL);
  if (!knows) {
    ++wrong_proofs_;
    return refuse(stranger, "its job token is wrong");
  }
  if (other) {
    other_rank_ = talk.connector;
    return refuse(stranger, talk.tls ? "it wants TLS, and this job has none"
                                     : "it wants no TLS, and this job has it");
  }
  if (!terms_.tls) {
    guests.push_back({std::move(stranger.fd), talk.connector, stranger.address});
    return;
  }
  auto tls = Tls::begin(stranger.fd.get(), TlsEnd::kListener, tls_secret(terms_, talk));
  if (!tls.ok()) return refuse(stranger, tls.status().message());
  stranger.tls = std::move(*tls);
  stranger.since = Clock::now();
}

void Gate::shake_hands(Stranger& stranger, std::vector<Guest>& guests) {
  switch (stranger.tls->shake_hands()) {
    case Tls::Step::kDone:
      guests.push_back({Connection(std::move(stranger.fd), std::move(stranger.tls)),
                        stranger.talk.connector, stranger.address});
      return;
    case Tls::Step::kWaits:
      return;
    case Tls::Step::kClosed:
      return refuse(stranger, "it left before TLS with it had begun");
    case Tls::Step::kRefused:
      return refuse(stranger, "TLS with it failed after its proof: that was passed on, or changed");
  }
}

void Gate::refuse(Stranger& stranger, std::string_view why) {
  stranger.tls.reset();
  stranger.fd.reset();
  refusals_.add(stranger.address, why, Clock::now());
}

void Gate::take_callers() {
  for (std::size_t taken = 0; taken < kMostStrangers; ++taken) {
    Caller caller = accept_from(listening_.get());
    if (caller.fd.get() < 0 && (errno == EMFILE || errno == ENFILE)) {  // strangers have them all
      make_room();
      return;
    }
    if (caller.fd.get() < 0) return;
    if (unproven() >= kMostStrangers) make_room();
    strangers_.push_back(
        {std::move(caller.fd), std::move(caller.address), {}, {}, Clock::now(), nullptr});
  }
}

std::size_t Gate::unproven() const {
  return static_cast<std::size_t>(std::count_if(
      strangers_.begin(), strangers_.end(),
      [](const Stranger& stranger) { return stranger.fd.get() >= 0 && stranger.tls == nullptr; }));
}

// Gives up the oldest of those that have not proved the token: a rank does so at once, so it is the
// least likely to be one. Who has proved it is a rank, and may be the slowest of all.
void Gate::make_room() {
  const auto oldest = std::find_if(
      strangers_.begin(), strangers_.end(),
      [](const Stranger& stranger) { return stranger.fd.get() >= 0 && stranger.tls == nullptr; });
  if (oldest == strangers_.end()) return;
  refuse(*oldest, "too many connections came that did not prove the job token");
  strangers_.erase(oldest);
}

}  // namespace agpcs
