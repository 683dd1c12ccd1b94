// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/replay/faulty_network.h"

#include "runtime/transport/checked_wire.h"
#include "runtime/transport/wire_transport.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kLate{20};
constexpr std::uint64_t kCollectiveSlots = std::uint64_t{1} << 63;

struct Packet {
  std::vector<char> bytes;
  Deadline arrives;
};
using Line = std::tuple<int, int, std::uint64_t>;  // from, to, slot

}  // namespace

const char* name_of(FaultKind kind) {
  constexpr std::array kNames{"none",     "drop",    "delay", "duplicate",
                              "truncate", "corrupt", "stop",  "die"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::ostream& operator<<(std::ostream& out, const Fault& fault) {
  return out << name_of(fault.kind) << " at message " << fault.message << " of rank " << fault.rank
             << (fault.collective ? " in collectives" : " to one rank");
}

class FaultyNetwork::State {
 public:
  State(int size, Fault fault) : fault_(fault), ranks_(static_cast<std::size_t>(size)) {}

  Status send(int from, int to, std::uint64_t slot, const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool collective = (slot & kCollectiveSlots) != 0;
    const std::size_t message = ranks_[index(from)].sent[collective ? 1 : 0]++;
    const bool now = fault_.kind != FaultKind::kNone && fault_.rank == from &&
                     fault_.collective == collective && fault_.message == message;
    if (now && (fault_.kind == FaultKind::kStop || fault_.kind == FaultKind::kDie)) end(from);
    if (!ranks_[index(from)].failure.ok()) return ranks_[index(from)].failure;
    if (ranks_[index(from)].silent) return {};
    const auto* first = static_cast<const char*>(data);
    Packet packet{{first, first + bytes}, std::chrono::steady_clock::now()};
    if (now) harm(packet);
    if (now && fault_.kind == FaultKind::kSever) severed_ = std::pair(from, to);
    const bool lost = (now && fault_.kind == FaultKind::kDrop) ||
                      (severed_.first == from && severed_.second == to);
    const int copies = lost ? 0 : now && fault_.kind == FaultKind::kDuplicate ? 2 : 1;
    for (int i = 0; i < copies; ++i) lines_[{from, to, slot}].push_back(packet);
    changed_.notify_all();
    return {};
  }

  Status receive(int from, int to, std::uint64_t slot, void* data, std::size_t bytes,
                 Deadline deadline) {
    std::unique_lock lock(mutex_);
    while (true) {
      const Rank& me = ranks_[index(to)];
      if (!me.failure.ok()) return me.failure;
      auto& line = lines_[{from, to, slot}];
      const auto now = std::chrono::steady_clock::now();
      const bool here = !line.empty() && !me.silent;
      if (here && line.front().arrives <= now) return take(line, data, bytes, from);
      if (!here && ranks_[index(from)].gone) {
        return {StatusCode::kPeerFailed, fmt::format("rank {} went away", from)};
      }
      if (now >= deadline) return {StatusCode::kTimeout, "timed out"};
      changed_.wait_until(lock, here ? std::min(deadline, line.front().arrives) : deadline);
    }
  }

  void cancel(int rank, const Status& reason) {
    const std::lock_guard lock(mutex_);
    if (ranks_[index(rank)].failure.ok()) ranks_[index(rank)].failure = reason;
    changed_.notify_all();
  }

  void announce(int rank, const Status& reason) {
    const std::lock_guard lock(mutex_);
    if (ranks_[index(rank)].silent || ranks_[index(rank)].gone) return;
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      if (other == index(rank) || !ranks_[other].failure.ok() || ranks_[other].silent) continue;
      ranks_[other].failure = {StatusCode::kPeerFailed,
                               fmt::format("rank {} failed: {}", rank, reason.message())};
    }
    changed_.notify_all();
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_[index(rank)].gone = !ranks_[index(rank)].silent;
    changed_.notify_all();
  }

  std::size_t size() const { return ranks_.size(); }
  std::size_t sent(int rank, bool collective) const {
    const std::lock_guard lock(mutex_);
    return ranks_[index(rank)].sent[collective ? 1 : 0];
  }

 private:
  struct Rank {
    std::array<std::size_t, 2> sent{};
    Status failure;
    bool silent = false, gone = false;
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void end(int rank) {
    Rank& ended = ranks_[index(rank)];
    if (fault_.kind == FaultKind::kStop) {
      ended.silent = true;
    } else {
      ended.gone = true;
      ended.failure = {StatusCode::kCancelled, "this rank died"};
    }
    changed_.notify_all();
  }

  void harm(Packet& packet) const {
    if (fault_.kind == FaultKind::kDelay) packet.arrives += kLate;
    if (packet.bytes.empty()) return;
    if (fault_.kind == FaultKind::kTruncate) packet.bytes.pop_back();
    if (fault_.kind == FaultKind::kCorrupt) {
      char& byte = packet.bytes[fault_.message % packet.bytes.size()];
      byte = static_cast<char>(byte ^ (1 << (fault_.message % 8)));
    }
  }

  static Status take(std::deque<Packet>& line, void* data, std::size_t bytes, int from) {
    const Packet packet = std::move(line.front());
    line.pop_front();
    if (packet.bytes.size() != bytes) {
      return {StatusCode::kUnavailable, fmt::format("rank {} sends {} bytes, {} are expected", from,
                                                    packet.bytes.size(), bytes)};
    }
    if (bytes > 0) std::memcpy(data, packet.bytes.data(), bytes);
    return {};
  }

  const Fault fault_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Line, std::deque<Packet>> lines_;
  std::vector<Rank> ranks_;
  std::pair<int, int> severed_{-1, -1};  // from, to
};

namespace {

class SentMessage final : public WireMessage {
 public:
  Status wait(Deadline /*deadline*/) override { return {}; }
};

class AwaitedMessage final : public WireMessage {
 public:
  AwaitedMessage(FaultyNetwork::State& state, Line line, void* data, std::size_t bytes)
      : state_(state), line_(std::move(line)), data_(data), bytes_(bytes) {}
  Status wait(Deadline deadline) override {
    const auto& [from, to, slot] = line_;
    return state_.receive(from, to, slot, data_, bytes_, deadline);
  }

 private:
  FaultyNetwork::State& state_;
  const Line line_;
  void* data_;
  std::size_t bytes_;
};

class FaultyWire final : public Wire {
 public:
  FaultyWire(FaultyNetwork::State& state, int rank) : state_(state), rank_(rank) {}
  ~FaultyWire() override { state_.leave(rank_); }
  FaultyWire(const FaultyWire&) = delete;
  FaultyWire& operator=(const FaultyWire&) = delete;

  Result<std::unique_ptr<WireMessage>> send(const void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    AGPCS_RETURN_IF_ERROR(state_.send(rank_, peer, slot, data, bytes));
    return std::unique_ptr<WireMessage>(std::make_unique<SentMessage>());
  }
  // Those of one line are waited for in the order posted.
  Result<std::unique_ptr<WireMessage>> recv(void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    return std::unique_ptr<WireMessage>(
        std::make_unique<AwaitedMessage>(state_, Line{peer, rank_, slot}, data, bytes));
  }
  void cancel(const Status& reason) override { state_.cancel(rank_, reason); }
  void announce(const Status& reason) override { state_.announce(rank_, reason); }

 private:
  FaultyNetwork::State& state_;
  const int rank_;
};

}  // namespace

FaultyNetwork::FaultyNetwork(int size, Fault fault)
    : state_(std::make_unique<State>(size, fault)) {}
FaultyNetwork::~FaultyNetwork() = default;

std::unique_ptr<Transport> FaultyNetwork::join(int rank, bool checked) {
  std::unique_ptr<Wire> wire = std::make_unique<FaultyWire>(*state_, rank);
  if (checked) wire = make_checked_wire(std::move(wire));
  return std::make_unique<WireTransport>(std::move(wire), rank, static_cast<int>(state_->size()));
}

std::size_t FaultyNetwork::sent(int rank, bool collective) const {
  return state_->sent(rank, collective);
}

}  // namespace agpcs
