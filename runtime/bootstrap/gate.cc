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
    refuse(stranger, fmt::format("it did not prove the job token within {} ms", kPatience.count()));
  }
  if (callers) take_callers();
  strangers_.remove_if([](const Stranger& stranger) { return stranger.fd.get() < 0; });
  return guests;
}

// Never reads beyond the proof: what follows is the guest's.
void Gate::read_from(Stranger& stranger, std::vector<Guest>& guests) {
  const std::size_t whole = stranger.our_nonce.empty() ? kGreetingBytes : kClaimBytes;
  char buffer[std::max(kGreetingBytes, kClaimBytes)];
  const auto count = recv(stranger.fd.get(), buffer, whole - stranger.in.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return refuse(stranger, "it left before it had proved the job token");
  stranger.in.append(buffer, static_cast<std::size_t>(count));
  if (stranger.our_nonce.empty()) {
    const std::size_t known = std::min(stranger.in.size(), kProofMagic.size());
    if (std::string_view(stranger.in).substr(0, known) != kProofMagic.substr(0, known)) {
      return refuse(stranger, "it does not speak the protocol of a job's ranks");
    }
    if (stranger.in.size() == whole) greet(stranger);
  } else if (stranger.in.size() == whole) {
    judge(stranger, guests);
  }
}

void Gate::greet(Stranger& stranger) {
  auto nonce = random_bytes(kNonceBytes);
  if (!nonce.ok()) return refuse(stranger, nonce.status().message());
  stranger.their_nonce = stranger.in.substr(kProofMagic.size());
  stranger.our_nonce = std::move(*nonce);
  stranger.in.clear();
  if (send(stranger.fd.get(), stranger.our_nonce.data(), kNonceBytes, MSG_NOSIGNAL) < 0) {
    refuse(stranger, "it left before it had proved the job token");
  }
}

void Gate::judge(Stranger& stranger, std::vector<Guest>& guests) {
  const auto rank = static_cast<int>(little_endian(std::string_view(stranger.in).substr(0, 4)));
  const std::string claim = claim_of(terms_, rank, stranger.their_nonce, stranger.our_nonce);
  const bool knows = same_proof(stranger.in, claim);
  const std::string verdict =
      knows ? kVerdictYes + proof_of(terms_, false, rank, stranger.their_nonce, stranger.our_nonce)
            : kVerdictNo + std::string(kProofBytes, '\0');
  [[maybe_unused]] const auto sent =
      send(stranger.fd.get(), verdict.data(), verdict.size(), MSG_NOSIGNAL);
  if (!knows) {
    ++wrong_proofs_;
    return refuse(stranger, "its job token is wrong");
  }
  guests.push_back({std::move(stranger.fd), rank, stranger.address});
}

void Gate::refuse(Stranger& stranger, std::string_view why) {
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
    if (strangers_.size() >= kMostStrangers) make_room();
    strangers_.push_back(
        {std::move(caller.fd), std::move(caller.address), {}, {}, {}, Clock::now()});
  }
}

// Gives up the oldest: a rank proves itself at once, so it is the least likely to be one.
void Gate::make_room() {
  const auto open = [](const Stranger& stranger) { return stranger.fd.get() >= 0; };
  const auto oldest = std::find_if(strangers_.begin(), strangers_.end(), open);
  if (oldest == strangers_.end()) return;
  refuse(*oldest, "too many connections came that did not prove the job token");
  strangers_.erase(oldest);
}

}  // namespace agpcs
