// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/server.h"

#include "runtime/bootstrap/listen_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kHelloLimit{5000};
constexpr std::size_t kMaxStoreBytes = std::size_t{64} << 20;   // all keys and values together
constexpr std::size_t kMaxQueuedBytes = std::size_t{16} << 20;  // unsent bytes to one rank
constexpr std::size_t kMaxWanted = 4096;                        // keys that a rank waits for

int number_of(const std::string& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

std::string other_tls(int rank, bool tls) {
  const auto word = [](bool with) { return with ? "yes" : "no"; };
  return fmt::format(
      "rank {} has another --tls than rank 0: {} against {}\n"
      "  hint: with --tls everything is encrypted, so all ranks need it, or none",
      rank, word(!tls), word(tls));
}

BootstrapServer::BootstrapServer(Fd listening, const BootstrapOptions& options)
    : place_(local_address_of(listening.get())),
      gate_(std::move(listening), bootstrap_terms(options), options.on_warning),
      options_(options),
      join_deadline_(Clock::now() + options.join_limit),
      members_(static_cast<std::size_t>(options.size)) {}

BootstrapServer::~BootstrapServer() { stop(std::chrono::milliseconds(0)); }

Status BootstrapServer::start() {
  AGPCS_RETURN_IF_ERROR(make_pipe(wake_read_, wake_write_));
  thread_ = std::thread([this] { run(); });
  return {};
}

void BootstrapServer::stop(std::chrono::milliseconds limit) {
  if (!thread_.joinable()) return;
  stop_deadline_ = Clock::now() + limit;
  stopping_ = true;
  [[maybe_unused]] const auto written = write(wake_write_.get(), "x", 1);
  thread_.join();
}

void BootstrapServer::run() {
  while (!finished()) {
    poll_once();
    check_clocks();
    peers_.remove_if([](const Peer& peer) { return !peer.connection.is_open(); });
  }
}

bool BootstrapServer::finished() const {
  if (!stopping_) return false;
  if (Clock::now() >= stop_deadline_.load()) return true;
  return std::none_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.rank >= 0 && !members_[static_cast<std::size_t>(peer.rank)].stalled;
  });
}

void BootstrapServer::poll_once() {
  std::vector<pollfd> fds{{wake_read_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    const short events =
        static_cast<short>(POLLIN | (peer.out.empty() && !peer.waits ? 0 : POLLOUT));
    fds.push_back({peer.connection.fd(), events, 0});
  }
  const std::size_t gate = fds.size();
  gate_.watch(fds);
  if (poll(fds.data(), fds.size(), static_cast<int>(kTick.count())) < 0) return;
  if (fds[0].revents != 0) {
    char drained[16];
    [[maybe_unused]] const auto count = read(wake_read_.get(), drained, sizeof drained);
  }
  auto peer = peers_.begin();
  for (std::size_t i = 1; i < gate; ++i, ++peer) {
    const short events = fds[i].revents;
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(*peer);
    if (peer->connection.is_open() && (!peer->out.empty() || peer->waits)) write_to(*peer);
  }
  for (Gate::Guest& guest : gate_.turn(&fds[gate])) take_guest(std::move(guest));
  if (const int rank = gate_.other_rank(); rank >= 0 && joined_ < options_.size) {
    fail(other_tls(rank, options_.tls));
  }
}

void BootstrapServer::take_guest(Gate::Guest guest) {
  Peer& peer = peers_.emplace_back();
  peer.connection = std::move(guest.connection);
  peer.proved = guest.rank;
  peer.since = peer.heard = Clock::now();
}

void BootstrapServer::read_from(Peer& peer) {
  while (read_some(peer) && peer.connection.has_unread()) {
  }
}

bool BootstrapServer::read_some(Peer& peer) {
  char buffer[16384];
  const auto count = peer.connection.read(buffer, sizeof buffer);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count <= 0) {
    close_peer(peer);
    return false;
  }
  peer.heard = Clock::now();
  peer.in.append(buffer, static_cast<std::size_t>(count));
  while (peer.connection.is_open() && !peer.closing) {
    const auto frame = peer.in.next(peer.rank < 0 ? kMaxHelloBytes : kMaxFrameBytes);
    if (!frame) break;
    handle(peer, *frame);
  }
  if (peer.connection.is_open() && peer.in.broken()) drop(peer);
  return peer.connection.is_open();
}

void BootstrapServer::write_to(Peer& peer) {
  while (!peer.out.empty()) {
    const auto count = peer.connection.write(peer.out.data(), peer.out.size());
    if (count < 0) {
      if (errno != EAGAIN && errno != EINTR) close_peer(peer);
      return;
    }
    peer.out.erase(0, static_cast<std::size_t>(count));
  }
  peer.waits = !peer.connection.flush();
  if (!peer.waits && peer.closing) peer.connection.close();
}

void BootstrapServer::handle(Peer& peer, const Frame& frame) {
  if (peer.rank < 0) {
    if (frame.kind == FrameKind::kHello) return handle_hello(peer, frame);
    return drop(peer);
  }
  const std::size_t fields = frame.fields.size();
  if (frame.kind == FrameKind::kPing) {
    queue(peer, {FrameKind::kPing, {}});
  } else if (frame.kind == FrameKind::kSet && fields == 2) {
    handle_set(peer, frame);
  } else if (frame.kind == FrameKind::kGet && fields == 1 && peer.wanted.size() < kMaxWanted) {
    handle_get(peer, frame.fields[0]);
  } else if (frame.kind == FrameKind::kFail && fields == 1) {
    handle_fail(peer, frame.fields[0]);
  } else if (frame.kind == FrameKind::kBye) {
    members_[static_cast<std::size_t>(peer.rank)].left = true;
  } else {
    drop(peer);
  }
}

void BootstrapServer::drop(Peer& peer) {
  if (peer.rank < 0) return peer.connection.close();
  lose(peer, describe(peer.rank) + " sent what is no message of the bootstrap's protocol");
  close_peer(peer);
}

void BootstrapServer::handle_hello(Peer& peer, const Frame& frame) {
  const auto& fields = frame.fields;
  const int rank = fields.size() > 1 ? number_of(fields[1]) : -1;
  if (rank != peer.proved || fields[0].rfind(kBootstrapProtocol, 0) != 0 ||
      (fields[0] == kBootstrapMagic && fields.size() != kHelloFields)) {
    return drop(peer);
  }
  if (!failure_.empty()) return refuse(peer, failure_, FrameKind::kFailed);
  const std::string reason = objection(rank, frame);
  if (!reason.empty()) {
    refuse(peer, reason);
    if (joined_ < options_.size) fail(reason);
    return;
  }
  if (members_[static_cast<std::size_t>(rank)].joined) {
    return refuse(peer, describe(rank) + " has joined already");
  }
  admit(peer, rank, frame);
}

void BootstrapServer::admit(Peer& peer, int rank, const Frame& hello) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  member.name = hello.fields[4];
  member.host = hello.fields[5];
  member.joined = true;
  peer.rank = rank;
  queue(peer, {FrameKind::kWelcome, {describe(0, options_.name, options_.host)}});
  if (++joined_ == options_.size) broadcast({FrameKind::kReady, {}});
}

std::string BootstrapServer::objection(int rank, const Frame& hello) const {
  const auto& fields = hello.fields;
  if (fields[0] != kBootstrapMagic) {
    return fmt::format(
        "rank {} speaks {}, rank 0 speaks {}\n  hint: every rank needs the same "
        "AGPCS version",
        rank, fields[0], kBootstrapMagic);
  }
  const std::string& size = fields[2];
  const std::string who = describe(rank, fields[4], fields[5]);
  if (size != std::to_string(options_.size)) {
    return fmt::format("{} expects {} ranks, rank 0 expects {}", who, size, options_.size);
  }
  if (rank < 0 || rank >= options_.size) {
    return fmt::format("{} is not within 0 and {}", who, options_.size - 1);
  }
  if (fields[3] != options_.identity) {
    return fmt::format("{} has another plan than rank 0: {} against {}", who, fields[3],
                       options_.identity);
  }
  const std::string difference = agreed_difference(fields[6], agreed_text(options_.agreed));
  return difference.empty() ? difference : fmt::format("{} {}", who, difference);
}

void BootstrapServer::handle_set(Peer& peer, const Frame& frame) {
  const std::string &key = frame.fields[0], &value = frame.fields[1];
  if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) return drop(peer);
  if (has_room(peer, key.size() + value.size())) store(peer.rank, key, value);
}

void BootstrapServer::handle_fail(Peer& peer, const std::string& message) {
  if (!outlives_ranks()) return fail(placed(peer.rank, message));
  if (has_room(peer, message.size())) add_event({peer.rank, false, message});
}

// Rank 0 may use the whole store, since the job is over without it. Any other rank may store at
// most as many bytes as it leaves free.
bool BootstrapServer::has_room(Peer& peer, std::size_t bytes) {
  const std::size_t stored = members_[static_cast<std::size_t>(peer.rank)].stored;
  const std::size_t left = peer.rank == 0 ? 0 : stored + bytes;
  if (value_bytes_ + bytes + left <= kMaxStoreBytes) return true;
  lose(peer, fmt::format("{} stored more than the bootstrap holds for it: {} bytes after {}, {} of "
                         "all ranks",
                         describe(peer.rank), bytes, stored, value_bytes_));
  return false;
}

void BootstrapServer::store(int rank, const std::string& key, const std::string& value) {
  const auto [it, added] = values_.emplace(key, value);
  if (!added) return;
  value_bytes_ += key.size() + value.size();
  members_[static_cast<std::size_t>(rank)].stored += key.size() + value.size();
  for (Peer& other : peers_) {
    if (other.wanted.erase(it->first) > 0) {
      queue(other, {FrameKind::kValue, {it->first, it->second}});
    }
  }
}

void BootstrapServer::handle_get(Peer& peer, const std::string& key) {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    peer.wanted.insert(key);
  } else {
    queue(peer, {FrameKind::kValue, {it->first, it->second}});
  }
}

std::string BootstrapServer::placed(int rank, const std::string& message) const {
  const Member& member = members_[static_cast<std::size_t>(rank)];
  const std::string bare = describe(rank, member.name, {});
  if (message.empty()) return describe(rank) + " failed without saying why";
  if (message.rfind("rank ", 0) != 0) return fmt::format("{}: {}", describe(rank), message);
  if (member.host.empty() || message.rfind(bare, 0) != 0) return message;
  return describe(rank) + message.substr(bare.size());
}

void BootstrapServer::close_peer(Peer& peer) {
  peer.connection.close();
  if (peer.rank >= 0 && !members_[static_cast<std::size_t>(peer.rank)].left) {
    lose(peer, describe(peer.rank) + " went away: its connection was lost");
  }
  peer.rank = -1;
}

void BootstrapServer::add_event(const BootstrapEvent& event) {
  store(event.rank, event_key(events_++), event_text(event));
}

void BootstrapServer::lose(Peer& peer, const std::string& why) {
  if (!outlives_ranks() || peer.rank == 0) return fail(why);
  Member& member = members_[static_cast<std::size_t>(peer.rank)];
  if (std::exchange(member.lost, true)) return;
  add_event({peer.rank, true, why});
  if (!peer.connection.is_open()) return;
  refuse(peer, why, FrameKind::kFailed);
  peer.connection.close();
}

void BootstrapServer::check_clocks() {
  const auto now = Clock::now();
  const auto unseen = std::chrono::duration_cast<std::chrono::milliseconds>(now - looked_);
  looked_ = now;
  if (outlives_ranks() && unseen > options_.stall_limit) {  // the others have given up on this rank
    fail(fmt::format("{} stalled: it did not run for {} ms", describe(0), unseen.count()));
  }
  for (Peer& peer : peers_) {
    if (peer.rank >= 0 && peer.out.size() > kMaxQueuedBytes) {
      lose(peer, describe(peer.rank) + " does not read what it asked for");
      close_peer(peer);
    }
    if (!peer.connection.is_open()) continue;
    const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(now - peer.heard);
    if (peer.rank < 0) {
      if (now - peer.since > kHelloLimit)
        peer.connection.close();  // regardless of what it has said
      continue;
    }
    Member& member = members_[static_cast<std::size_t>(peer.rank)];
    if (silence <= options_.stall_limit || member.left || member.stalled) continue;
    member.stalled = true;
    lose(peer,
         fmt::format("{} stalled: not heard from for {} ms", describe(peer.rank), silence.count()));
  }
  if (joined_ < options_.size && now > join_deadline_ && failure_.empty()) fail(missing_ranks());
}

std::string BootstrapServer::missing_ranks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!members_[static_cast<std::size_t>(rank)].joined) missing.push_back(rank);
  }
  std::string message =
      fmt::format("{} {} of {} did not join within {} ms", missing.size() == 1 ? "rank" : "ranks",
                  fmt::join(missing, ","), options_.size, options_.join_limit.count());
  if (const std::int64_t wrong = gate_.wrong_proofs(); wrong > 0) {
    message += fmt::format(
        "\n  hint: {} connection{} with a wrong job token {} refused: every "
        "rank needs the same AGPCS_JOB_TOKEN",
        wrong, wrong == 1 ? "" : "s", wrong == 1 ? "was" : "were");
  }
  if (is_loopback(place_) && !options_.one_machine.value_or(false)) {
    message += fmt::format(
        "\n  hint: rank 0 listens at {}, which no other machine reaches: --bind says where else",
        place_);
  }
  return message;
}

void BootstrapServer::refuse(Peer& peer, const std::string& reason, FrameKind kind) {
  queue(peer, {kind, {reason}});
  peer.closing = true;
  write_to(peer);
}

void BootstrapServer::fail(const std::string& message) {
  if (!failure_.empty()) return;
  failure_ = message;
  broadcast({FrameKind::kFailed, {failure_}});
}

void BootstrapServer::broadcast(const Frame& frame) {
  for (Peer& peer : peers_) {
    if (peer.rank >= 0 && peer.connection.is_open()) queue(peer, frame);
  }
}

void BootstrapServer::queue(Peer& peer, const Frame& frame) { peer.out += encode(frame); }

std::string BootstrapServer::describe(int rank) const {
  const Member& member = members_[static_cast<std::size_t>(rank)];
  return describe(rank, member.name, member.host);
}

std::string BootstrapServer::describe(int rank, const std::string& name, const std::string& host) {
  if (name.empty() && host.empty()) return fmt::format("rank {}", rank);
  const std::string_view joint = name.empty() || host.empty() ? "" : " on ";
  return fmt::format("rank {} ({}{}{})", rank, name, joint, host);
}

}  // namespace agpcs
