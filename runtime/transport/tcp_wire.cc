// SPDX-License-Identifier: Apache-2.0
// The TCP wire: a connection with every other rank, and one thread that reads from all of them,
// adds what is to be added, and writes what did not leave at once.
#include "runtime/bootstrap/socket.h"
#include "runtime/transport/bootstrapped.h"
#include "runtime/transport/tcp_mesh.h"
#include "runtime/transport/tcp_peer.h"
#include "runtime/transport/wire.h"

#include <agpcs/tcp.h>

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
#include <sys/epoll.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kFarewellLimit{3000};

class TcpWire;

class TcpMessage final : public WireMessage {
 public:
  TcpMessage(TcpWire& wire, int peer, const Pieces& pieces, std::uint64_t slot,
             std::optional<DType> added_as)
      : wire_(wire), peer_(peer), transfer_(pieces, slot, added_as) {}
  ~TcpMessage() override;
  TcpMessage(const TcpMessage&) = delete;
  TcpMessage& operator=(const TcpMessage&) = delete;

  Status wait(Deadline deadline) override;
  TcpTransfer& transfer() { return transfer_; }

 private:
  TcpWire& wire_;
  const int peer_;
  TcpTransfer transfer_;
};

class TcpWire final : public Wire {
 public:
  explicit TcpWire(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}
  ~TcpWire() override {
    wake_write_.reset();
    if (thread_.joinable()) thread_.join();
    const auto deadline = std::chrono::steady_clock::now() + kFarewellLimit;
    for (const auto& peer : peers_) {
      if (peer) peer->flush_before(deadline);
    }
  }
  TcpWire(const TcpWire&) = delete;
  TcpWire& operator=(const TcpWire&) = delete;

  Status start(std::vector<TcpLink> links);

  Result<std::unique_ptr<WireMessage>> send(const void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    auto* only_read = static_cast<char*>(const_cast<void*>(data));
    return post(&TcpPeer::send, Span{only_read, bytes}, peer, slot);
  }
  Result<std::unique_ptr<WireMessage>> recv(void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    return post(&TcpPeer::recv, Span{static_cast<char*>(data), bytes}, peer, slot);
  }
  Result<std::unique_ptr<WireMessage>> send_pieces(const Pieces& from, int peer,
                                                   std::uint64_t slot) override {
    return post(&TcpPeer::send, from, peer, slot);
  }
  Result<std::unique_ptr<WireMessage>> recv_pieces(const Pieces& to, int peer,
                                                   std::uint64_t slot) override {
    return post(&TcpPeer::recv, to, peer, slot);
  }
  Result<std::unique_ptr<WireMessage>> recv_and_add(const Pieces& to, DType type, int peer,
                                                    std::uint64_t slot) override {
    return post(&TcpPeer::recv, to, peer, slot, type);
  }
  void cancel(const Status& reason) override {
    {
      const std::lock_guard lock(mutex_);
      if (!cancelled_.ok()) return;
      cancelled_ = reason;
    }
    for (const auto& peer : peers_) {
      if (peer) peer->fail(reason);
    }
  }
  void announce(const Status& reason) override { bootstrap_.report(reason); }

  TcpPeer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  /// Returns the error to report where the connection with `peer` ended because of `why`.
  Status ended(int peer, const Status& why) const {
    const Status reason = cancelled();
    if (!reason.ok()) return reason;
    const Status failure = reason_of_loss(bootstrap_);
    if (!failure.ok()) return failure;
    if (why.code() != StatusCode::kPeerFailed) {
      return {why.code(), fmt::format("messages with rank {}: {}", peer, why.message())};
    }
    return {why.code(), fmt::format("rank {} went away: {}", peer, why.message())};
  }

 private:
  Result<std::unique_ptr<WireMessage>> post(Status (TcpPeer::*how)(TcpTransfer&),
                                            const Pieces& pieces, int peer, std::uint64_t slot,
                                            std::optional<DType> added_as = std::nullopt);
  Status cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  void run();

  Bootstrap& bootstrap_;
  std::vector<std::unique_ptr<TcpPeer>> peers_;  // by rank; its own is null
  Fd epoll_, wake_read_, wake_write_;
  std::thread thread_;
  mutable std::mutex mutex_;
  Status cancelled_;
};

TcpMessage::~TcpMessage() {
  if (!transfer_.finished()) wire_.peer(peer_).withdraw(transfer_);
}

Status TcpMessage::wait(Deadline deadline) {
  Status status;
  if (!transfer_.wait(deadline, status)) return {StatusCode::kTimeout, "timed out"};
  return status.ok() ? status : wire_.ended(peer_, status);
}

Status TcpWire::start(std::vector<TcpLink> links) {
  AGPCS_RETURN_IF_ERROR(make_pipe(wake_read_, wake_write_));
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event wake{};
  wake.events = EPOLLIN;
  if (epoll_.get() < 0 || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_read_.get(), &wake) != 0) {
    return {StatusCode::kUnavailable, "cannot watch connections: " + error_text(errno)};
  }
  for (TcpLink& link : links) {
    peers_.emplace_back();
    if (!link.connection.is_open()) continue;
    peers_.back() =
        std::make_unique<TcpPeer>(std::move(link.connection), std::move(link.where), epoll_.get());
    AGPCS_RETURN_IF_ERROR(peers_.back()->watch());
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

Result<std::unique_ptr<WireMessage>> TcpWire::post(Status (TcpPeer::*how)(TcpTransfer&),
                                                   const Pieces& pieces, int peer,
                                                   std::uint64_t slot,
                                                   std::optional<DType> added_as) {
  const Status reason = cancelled();
  if (!reason.ok()) return reason;
  auto message = std::make_unique<TcpMessage>(*this, peer, pieces, slot, added_as);
  if (pieces.bytes() == 0) {  // both ends know that there is nothing to move
    message->transfer().finish({});
  } else if (const Status why = (this->peer(peer).*how)(message->transfer()); !why.ok()) {
    message->transfer().finish(why);
    return ended(peer, why);
  }
  return std::unique_ptr<WireMessage>(std::move(message));
}

void TcpWire::run() {
  std::array<epoll_event, 64> events{};
  std::vector<char> scratch(TcpPeer::kScratchBytes);
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.ptr == nullptr) return;  // the wire ends
      auto& peer = *static_cast<TcpPeer*>(event.data.ptr);
      bool open = (event.events & EPOLLOUT) == 0 || peer.write();
      if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0)
        open = peer.read(scratch) && open;
      if (!open) peer.forget();
    }
  }
}

}  // namespace

Result<std::unique_ptr<Transport>> connect_tcp(Bootstrap& bootstrap, const TcpOptions& options) {
  AGPCS_TRY(std::vector<TcpLink> links, connect_mesh(bootstrap, options));
  auto wire = std::make_unique<TcpWire>(bootstrap);
  AGPCS_RETURN_IF_ERROR(wire->start(std::move(links)));
  return bootstrapped_transport(std::move(wire), bootstrap, options.check_messages);
}

}  // namespace agpcs
