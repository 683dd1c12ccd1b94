// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kHelloLimit{5000};
constexpr std::size_t kMaxStrangers = 64;  // connections that have not said hello

// Takes the same time for any two strings of one length: a wrong guess learns nothing.
bool same_secret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]));
  }
  return difference == 0;
}

int number_of(const std::string& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

BootstrapServer::BootstrapServer(Fd listening, const BootstrapOptions& options)
    : listening_(std::move(listening)),
      options_(options),
      join_deadline_(Clock::now() + options.join_limit),
      members_(static_cast<std::size_t>(options.size)) {}

BootstrapServer::~BootstrapServer() { stop(std::chrono::milliseconds(0)); }

Status BootstrapServer::start() {
  AGPCS_RETURN_IF_ERROR(make_pipe(wake_read_, wake_write_));
  set_non_blocking(listening_.get());
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
    peers_.remove_if([](const Peer& peer) { return peer.fd.get() < 0; });
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
  std::vector<pollfd> fds{{wake_read_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    const short events = static_cast<short>(POLLIN | (peer.out.empty() ? 0 : POLLOUT));
    fds.push_back({peer.fd.get(), events, 0});
  }
  const std::size_t known = peers_.size();
  if (poll(fds.data(), fds.size(), static_cast<int>(kTick.count())) <= 0) return;
  if (fds[0].revents != 0) {
    char drained[16];
    [[maybe_unused]] const auto count = read(wake_read_.get(), drained, sizeof drained);
  }
  auto peer = peers_.begin();
  for (std::size_t i = 0; i < known; ++i, ++peer) {
    const short events = fds[i + 2].revents;
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(*peer);
    if (peer->fd.get() >= 0 && !peer->out.empty()) write_to(*peer);
  }
  if (fds[1].revents != 0) accept_peer();
}

void BootstrapServer::accept_peer() {
  Fd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.get() < 0) return;
  const auto strangers =
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.rank < 0; });
  if (static_cast<std::size_t>(strangers) >= kMaxStrangers) return;  // closes it
  Peer& peer = peers_.emplace_back();
  peer.fd = std::move(fd);
  peer.heard = Clock::now();
}

void BootstrapServer::read_from(Peer& peer) {
  char buffer[16384];
  const auto count = recv(peer.fd.get(), buffer, sizeof buffer, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return close_peer(peer);
  peer.heard = Clock::now();
  peer.in.append(buffer, static_cast<std::size_t>(count));
  while (peer.fd.get() >= 0 && !peer.closing) {
    const auto frame = peer.in.next(peer.rank < 0 ? kMaxHelloBytes : kMaxFrameBytes);
    if (!frame) break;
    handle(peer, *frame);
  }
  if (peer.fd.get() >= 0 && peer.in.broken()) close_peer(peer);
}

void BootstrapServer::write_to(Peer& peer) {
  const auto count = send(peer.fd.get(), peer.out.data(), peer.out.size(), MSG_NOSIGNAL);
  if (count < 0) {
    if (errno != EAGAIN && errno != EINTR) close_peer(peer);
    return;
  }
  peer.out.erase(0, static_cast<std::size_t>(count));
  if (peer.out.empty() && peer.closing) peer.fd.reset();
}

void BootstrapServer::handle(Peer& peer, const Frame& frame) {
  if (peer.rank < 0) {
    if (frame.kind == FrameKind::kHello) return handle_hello(peer, frame);
    return peer.fd.reset();
  }
  const std::size_t fields = frame.fields.size();
  if (frame.kind == FrameKind::kPing) {
    queue(peer, {FrameKind::kPing, {}});
  } else if (frame.kind == FrameKind::kSet && fields == 2) {
    handle_set(frame);
  } else if (frame.kind == FrameKind::kGet && fields == 1) {
    const auto it = values_.find(frame.fields[0]);
    if (it == values_.end()) {
      peer.wanted.insert(frame.fields[0]);
    } else {
      queue(peer, {FrameKind::kValue, {it->first, it->second}});
    }
  } else if (frame.kind == FrameKind::kFail && fields == 1) {
    fail(frame.fields[0]);
  } else if (frame.kind == FrameKind::kBye) {
    members_[static_cast<std::size_t>(peer.rank)].left = true;
  } else {
    close_peer(peer);
  }
}

void BootstrapServer::handle_hello(Peer& peer, const Frame& frame) {
  if (frame.fields.size() != 6 || frame.fields[0] != kBootstrapMagic) return peer.fd.reset();
  if (!same_secret(frame.fields[1], options_.token)) {
    return refuse(peer, "the job token is wrong: every rank needs the same AGPCS_JOB_TOKEN");
  }
  if (!failure_.empty()) return refuse(peer, failure_);
  const int rank = number_of(frame.fields[2]);
  const std::string reason = objection(rank, frame);
  if (!reason.empty()) {
    refuse(peer, reason);
    return fail(reason);
  }
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (member.joined) return refuse(peer, describe(rank) + " has joined already");
  member = {frame.fields[5], true, false};
  peer.rank = rank;
  queue(peer, {FrameKind::kWelcome, {options_.name}});
  if (++joined_ == options_.size) broadcast({FrameKind::kReady, {}});
}

std::string BootstrapServer::objection(int rank, const Frame& hello) const {
  const std::string& size = hello.fields[3];
  const std::string who = fmt::format("rank {} ({})", hello.fields[2], hello.fields[5]);
  if (size != std::to_string(options_.size)) {
    return fmt::format("{} expects {} ranks, rank 0 expects {}", who, size, options_.size);
  }
  if (rank < 0 || rank >= options_.size) {
    return fmt::format("{} is not within 0 and {}", who, options_.size - 1);
  }
  if (hello.fields[4] != options_.identity) {
    return fmt::format("{} has another plan than rank 0: {} against {}", who, hello.fields[4],
                       options_.identity);
  }
  return {};
}

void BootstrapServer::handle_set(const Frame& frame) {
  const auto [it, added] = values_.emplace(frame.fields[0], frame.fields[1]);
  if (!added) return;
  for (Peer& peer : peers_) {
    if (peer.wanted.erase(it->first) > 0) {
      queue(peer, {FrameKind::kValue, {it->first, it->second}});
    }
  }
}

void BootstrapServer::close_peer(Peer& peer) {
  peer.fd.reset();
  const int rank = std::exchange(peer.rank, -1);
  if (rank >= 0 && !members_[static_cast<std::size_t>(rank)].left) {
    fail(describe(rank) + " went away: its connection was lost");
  }
}

void BootstrapServer::check_clocks() {
  const auto now = Clock::now();
  for (Peer& peer : peers_) {
    const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(now - peer.heard);
    if (peer.rank < 0) {
      if (silence > kHelloLimit) peer.fd.reset();
      continue;
    }
    Member& member = members_[static_cast<std::size_t>(peer.rank)];
    if (silence <= options_.stall_limit || member.left || member.stalled) continue;
    member.stalled = true;
    fail(fmt::format("{} stalled: not heard from for {} ms", describe(peer.rank), silence.count()));
  }
  if (joined_ < options_.size && now > join_deadline_ && failure_.empty()) {
    std::vector<int> missing;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (!members_[static_cast<std::size_t>(rank)].joined) missing.push_back(rank);
    }
    fail(fmt::format("{} {} of {} did not join within {} ms",
                     missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ","), options_.size,
                     options_.join_limit.count()));
  }
}

void BootstrapServer::refuse(Peer& peer, const std::string& reason) {
  queue(peer, {FrameKind::kRefused, {reason}});
  peer.closing = true;
  write_to(peer);
}

void BootstrapServer::fail(const std::string& message) {
  if (!failure_.empty()) return;
  failure_ = message.empty() ? "a rank failed without saying why" : message;
  broadcast({FrameKind::kFailed, {failure_}});
}

void BootstrapServer::broadcast(const Frame& frame) {
  for (Peer& peer : peers_) {
    if (peer.rank >= 0 && peer.fd.get() >= 0) queue(peer, frame);
  }
}

void BootstrapServer::queue(Peer& peer, const Frame& frame) { peer.out += encode(frame); }

std::string BootstrapServer::describe(int rank) const {
  const std::string& name = members_[static_cast<std::size_t>(rank)].name;
  return name.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, name);
}

}  // namespace agpcs
