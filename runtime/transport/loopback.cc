// SPDX-License-Identifier: Apache-2.0
// The loopback wire: a message is done when its two ends have met; the one that comes second copies
// the bytes.
#include "ir/base/check.h"
#include "runtime/support/sum.h"
#include "runtime/transport/wire.h"
#include "runtime/transport/wire_transport.h"

#include <agpcs/loopback.h>

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct SlotKey {
  int from = 0, to = 0;
  std::uint64_t slot = 0;
  friend bool operator<(const SlotKey& a, const SlotKey& b) {
    return std::tie(a.from, a.to, a.slot) < std::tie(b.from, b.to, b.slot);
  }
};

// One end of a message.
struct End {
  int rank = 0, peer = 0;
  bool sending = false;
  char* data = nullptr;
  std::size_t bytes = 0;
  SlotKey key;
  std::optional<DType> added_as;  // a receive whose elements are added
  bool done = false;
  Status failure;
};

// The place where the ends of messages meet. Copies are made under the lock, because the ranks of
// one process share its memory's bandwidth anyway.
class Board {
 public:
  explicit Board(int size)
      : size_(size),
        joined_(static_cast<std::size_t>(size), false),
        withdrew_(static_cast<std::size_t>(size), false),
        failure_(static_cast<std::size_t>(size)),
        gone_(static_cast<std::size_t>(size)) {}

  int size() const { return size_; }

  void join(int rank) {
    const std::lock_guard lock(mutex_);
    AGPCS_CHECK(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
    AGPCS_CHECK(!at(joined_, rank), "rank {} joined twice", rank);
    at(joined_, rank) = true;
  }

  // A rank whose operations fail posts nothing: its later messages would meet ends that were meant
  // for the ones that it gave up.
  void post(End& end) {
    const std::lock_guard lock(mutex_);
    if (!at(failure_, end.rank).ok()) return;
    auto& waiting = waiting_[end.key];
    if (waiting.empty() || waiting.front()->sending == end.sending) {
      waiting.push_back(&end);
      return;
    }
    End& other = *waiting.front();
    waiting.pop_front();
    meet(end.sending ? end : other, end.sending ? other : end);
    changed_.notify_all();
  }

  Status wait(const End& end, Deadline deadline) {
    std::unique_lock lock(mutex_);
    Status trouble;
    const bool awake = changed_.wait_until(lock, deadline, [&] {
      trouble = trouble_of(end);
      return end.done || !trouble.ok();
    });
    if (!awake) return {StatusCode::kTimeout, "timed out"};
    return end.done ? end.failure : trouble;
  }

  void withdraw(End& end) {
    const std::lock_guard lock(mutex_);
    if (end.done) return;
    at(withdrew_, end.rank) = true;
    auto& waiting = waiting_[end.key];
    waiting.erase(std::remove(waiting.begin(), waiting.end(), &end), waiting.end());
  }

  void cancel(int rank, const Status& reason) {
    const std::lock_guard lock(mutex_);
    set_once(at(failure_, rank), reason);
    changed_.notify_all();
  }

  // Makes all operations of the other ranks fail, not only those with `rank`, so that no rank waits
  // for one that has given up.
  void announce(int rank, const Status& reason) {
    const std::lock_guard lock(mutex_);
    for (int other = 0; other < size_; ++other) {
      if (other == rank) continue;
      set_once(at(failure_, other), {StatusCode::kPeerFailed,
                                     fmt::format("rank {} failed: {}", rank, reason.message())});
    }
    changed_.notify_all();
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    set_once(at(gone_, rank), {StatusCode::kPeerFailed, fmt::format("rank {} went away", rank)});
    changed_.notify_all();
  }

 private:
  template <typename T>
  static auto at(std::vector<T>& values, int rank) -> decltype(values[0]) {
    return values[static_cast<std::size_t>(rank)];
  }
  static void set_once(Status& status, Status value) {
    if (status.ok()) status = std::move(value);
  }
  Status trouble_of(const End& end) {
    const Status& own = at(failure_, end.rank);
    return own.ok() ? at(gone_, end.peer) : own;
  }
  void meet(End& send, End& recv) {
    send.done = recv.done = true;
    if (send.bytes == recv.bytes) {
      if (send.bytes > 0) put(send, recv);
      return;
    }
    const std::string text = fmt::format("rank {} sends {} bytes, rank {} expects {}", send.rank,
                                         send.bytes, recv.rank, recv.bytes);
    send.failure = mismatch(recv.rank, text);
    recv.failure = mismatch(send.rank, text);
  }
  static void put(const End& send, const End& recv) {
    if (!recv.added_as) {
      std::memcpy(recv.data, send.data, send.bytes);
    } else {
      add_into(recv.data, send.data, send.bytes / size_of(*recv.added_as), *recv.added_as);
    }
  }
  // A rank that gave up a message leaves later ones, which meet what was meant for the former.
  Status mismatch(int peer, const std::string& text) {
    if (!at(withdrew_, peer)) return internal_error(text);
    return {StatusCode::kPeerFailed,
            fmt::format("rank {} has given up an earlier message: {}", peer, text)};
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SlotKey, std::deque<End*>> waiting_;  // all ends in a queue have the same direction
  std::vector<bool> joined_;
  std::vector<bool> withdrew_;   // by rank: it has given up a message
  std::vector<Status> failure_;  // by rank: why all its operations fail
  std::vector<Status> gone_;     // by rank: what its peers get as an error
};

class LoopbackMessage final : public WireMessage {
 public:
  LoopbackMessage(Board& board, End end) : board_(board), end_(std::move(end)) {
    board_.post(end_);
  }
  ~LoopbackMessage() override { board_.withdraw(end_); }
  LoopbackMessage(const LoopbackMessage&) = delete;
  LoopbackMessage& operator=(const LoopbackMessage&) = delete;

  Status wait(Deadline deadline) override { return board_.wait(end_, deadline); }

 private:
  Board& board_;
  End end_;
};

class LoopbackWire final : public Wire {
 public:
  LoopbackWire(Board& board, int rank) : board_(board), rank_(rank) { board_.join(rank); }
  ~LoopbackWire() override { board_.leave(rank_); }
  LoopbackWire(const LoopbackWire&) = delete;
  LoopbackWire& operator=(const LoopbackWire&) = delete;

  Result<std::unique_ptr<WireMessage>> send(const void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    // `End` serves both directions; a send only reads the bytes.
    auto* bytes_of = static_cast<char*>(const_cast<void*>(data));
    return post({rank_, peer, true, bytes_of, bytes, {rank_, peer, slot}, {}, false, {}});
  }
  Result<std::unique_ptr<WireMessage>> recv(void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    return post(
        {rank_, peer, false, static_cast<char*>(data), bytes, {peer, rank_, slot}, {}, false, {}});
  }
  Result<std::unique_ptr<WireMessage>> recv_and_add(const Pieces& to, DType type, int peer,
                                                    std::uint64_t slot) override {
    char* const data = to.together();
    if (data == nullptr) return Wire::recv_and_add(to, type, peer, slot);
    return post({rank_, peer, false, data, to.bytes(), {peer, rank_, slot}, type, false, {}});
  }
  void cancel(const Status& reason) override { board_.cancel(rank_, reason); }
  void announce(const Status& reason) override { board_.announce(rank_, reason); }

 private:
  Result<std::unique_ptr<WireMessage>> post(End end) {
    return std::unique_ptr<WireMessage>(std::make_unique<LoopbackMessage>(board_, std::move(end)));
  }

  Board& board_;
  const int rank_;
};

}  // namespace

struct LoopbackHub::State {
  explicit State(int size) : board(size) {}
  Board board;
};

LoopbackHub::LoopbackHub(int size) : state_(std::make_unique<State>(size)) {}
LoopbackHub::~LoopbackHub() = default;

int LoopbackHub::size() const { return state_->board.size(); }

std::unique_ptr<Transport> LoopbackHub::join(int rank) {
  return std::make_unique<WireTransport>(std::make_unique<LoopbackWire>(state_->board, rank), rank,
                                         size());
}

}  // namespace agpcs
