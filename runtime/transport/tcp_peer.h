// SPDX-License-Identifier: Apache-2.0
// TcpPeer: the connection to one other rank, and the messages over it.
//
// A frame is a slot and a number of bytes, 8 bytes each, little-endian. A message is a frame and
// its bytes. One of more than `kEagerBytes` only comes when its receiver has asked for it, by a
// frame without bytes (`kWanted`), so it is read to where it belongs. A smaller one comes unasked;
// if nobody awaits it yet, it is kept. Both ends know a message's length, so they agree on which
// kind it is. What is asked for goes before messages that have not begun.
#pragma once

#include "runtime/bootstrap/connection.h"
#include "runtime/transport/wire.h"

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <sys/uio.h>
#include <vector>

namespace agpcs {

/// A message's place in memory, and its end.
class TcpTransfer {
 public:
  TcpTransfer(const Pieces& where, std::uint64_t of_slot, std::optional<DType> added = std::nullopt)
      : pieces(where), bytes(where.bytes()), slot(of_slot), added_as(added) {}

  void finish(const Status& status);
  /// Returns false if it has not ended before `deadline`.
  bool wait(Deadline deadline, Status& status);
  bool finished() const;

  const Pieces pieces;
  const std::size_t bytes;
  const std::uint64_t slot;
  const std::optional<DType> added_as;  ///< a receive whose elements are added to those there

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  Status status_;
};

class TcpPeer {
 public:
  static constexpr std::size_t kEagerBytes = 8192;
  static constexpr std::size_t kScratchBytes = 8 * kEagerBytes;
  static constexpr std::size_t kMostParts = 1024;  ///< that Linux takes at once (IOV_MAX)

  /// `where` is the other end's address. `epoll` watches the connection for bytes that come, with
  /// this peer as its data; the peer also has it watch for room while it needs that.
  TcpPeer(Connection connection, std::string where, int epoll);
  /// Asks `epoll` to watch. From then on a thread calls `read` and `write`.
  Status watch();

  /// Posts a transfer, which must live until it is finished or withdrawn. Error: why the connection
  /// is over.
  Status send(TcpTransfer& transfer);
  Status recv(TcpTransfer& transfer);
  /// Ends a transfer that is not finished, whose memory is not touched afterwards. One that is half
  /// through ends the connection.
  void withdraw(TcpTransfer& transfer);
  /// Ends the connection: all transfers finish with `why`, and no others are taken.
  void fail(const Status& why);

  /// Reads what has come, or writes what there is room for. Returns false once the connection is
  /// over. One thread calls them. What is added comes by way of `scratch`, of `kScratchBytes`,
  /// which stays in the processor's cache.
  bool read(std::vector<char>& scratch);
  bool write();
  /// Has `epoll` watch no more.
  void forget();
  /// Waits until what has been sent is with the system, until `deadline` at most. Nobody else may
  /// write any more.
  void flush_before(Deadline deadline) { connection_.flush_before(deadline); }

 private:
  struct Frame {
    std::uint64_t slot, word;  // word: bytes, or kWanted and bytes
  };
  static_assert(sizeof(Frame) == 16);
  struct Outgoing {
    Frame frame;
    TcpTransfer* transfer;  // null: nothing follows the frame
    std::size_t sent = 0;   // of frame and bytes
    std::size_t size() const { return sizeof(Frame) + (transfer ? transfer->bytes : 0); }
  };
  struct Kept {  // a small message that came before it was awaited
    std::uint64_t slot;
    std::string bytes;
  };
  struct Parts {  // of what is read or written at once
    /// Adds the pieces of a transfer from byte `from` on, or those that have room; returns whether
    /// all have.
    bool add(const TcpTransfer& transfer, std::size_t from);
    void add(void* data, std::size_t bytes) { all[count++] = {data, bytes}; }
    bool full() const { return count == all.size(); }
    std::array<iovec, kMostParts> all;
    std::size_t count = 0;
  };

  // All of these with `out_mutex_`.
  void flush();
  void gather(Parts& parts);
  void sent(std::size_t bytes);
  bool advance(Outgoing& outgoing, std::size_t& bytes);
  void want_room(bool wanted);
  void start(TcpTransfer& transfer);

  ssize_t read_unlocked(std::unique_lock<std::mutex>& lock, std::vector<char>& scratch);
  void add_arrived(std::vector<char>& scratch, std::size_t bytes);
  // All of these with `in_mutex_`. A Status is why the connection is over.
  Status take(std::size_t bytes, std::vector<char>& scratch);
  std::size_t arrive(std::size_t bytes);
  Status take_small(std::uint64_t slot, std::string_view bytes);
  Result<std::size_t> take_large(const Frame& frame, std::string_view rest,
                                 std::vector<char>& scratch);
  Status take_wish(const Frame& wish);

  Connection connection_;  // read by one thread; written with `out_mutex_`
  const std::string where_;
  const int epoll_;

  // Taken before `out_mutex_` where both are.
  std::mutex in_mutex_;
  std::deque<TcpTransfer*> awaited_;
  std::deque<Kept> kept_;
  std::size_t kept_bytes_ = 0;
  TcpTransfer* arriving_ = nullptr;
  std::size_t arrived_ = 0;  // bytes of it
  // The last of them, if they are added and not yet a whole element.
  std::array<char, 8> odd_{};
  std::size_t odd_bytes_ = 0;
  std::vector<char> staged_;  // frames and small messages; empty while a large one arrives
  std::size_t staged_bytes_ = 0;
  bool reading_ = false;  // to `arriving_` and `staged_`, without the mutex
  std::condition_variable read_changed_;
  bool failed_ = false;
  bool wished_ = false;  // a wish let a message go

  std::mutex out_mutex_;
  std::deque<TcpTransfer*> unwanted_;  // nobody has asked for them yet
  std::deque<Frame> wishes_;           // for messages that have not been posted yet; word: bytes
  std::deque<Outgoing> wanted_out_, messages_out_;
  Outgoing leaving_{};  // has begun, if `is_leaving_`
  bool is_leaving_ = false, wants_room_ = false;
  Status over_;  // why the connection is over
};

}  // namespace agpcs
