// SPDX-License-Identifier: Apache-2.0
// ScheduleAllReduce: all-reduces along flows over a wire, made of point-to-point messages and local
// sums.
#pragma once

#include "runtime/transport/awaited_peer.h"
#include "runtime/transport/flow_program.h"
#include "runtime/transport/wire.h"

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {

/// A buffer cut into parts for a flow. Parts travel in segments.
struct FlowParts {
  Buffer buffer;
  std::int64_t parts = 1;

  static constexpr std::size_t kSegmentBytes = std::size_t{1} << 20;
  std::size_t bytes_of(int part) const;
  std::size_t segments_of(int part) const;  ///< 0 for an empty part
  std::size_t bytes_of(int part, std::size_t segment) const;
  char* place_of(int part, std::size_t segment) const;
};

/// Walks over the segments of messages. It goes round by round. Within a round, it visits the first
/// segments of all messages, then all second ones, and so on, so that the messages of a round go on
/// side by side.
template <typename Message>
class SegmentWalk {
 public:
  SegmentWalk() = default;
  SegmentWalk(const std::vector<Message>& messages, const FlowParts& parts)
      : messages_(&messages), parts_(&parts) {
    begin_round(0);
    settle();
  }

  bool over() const { return first_ == messages_->size(); }
  /// Returns whether nothing is left of rounds up to `last`.
  bool over(int last) const { return over() || (*messages_)[at_].round > last; }
  std::size_t message() const { return at_; }
  std::size_t segment() const { return segment_; }
  void advance() {
    ++at_;
    settle();
  }

 private:
  void begin_round(std::size_t first) {
    first_ = at_ = end_ = first;
    while (end_ < messages_->size() && (*messages_)[end_].round == (*messages_)[first].round)
      ++end_;
    segment_ = 0;
    some_ = false;
  }
  // Moves on to the next message that has the segment; after the last one, to the next segment or
  // round.
  void settle() {
    while (!over()) {
      if (at_ < end_) {
        if (parts_->segments_of((*messages_)[at_].chunk) > segment_) {
          some_ = true;
          return;
        }
        ++at_;
      } else if (some_) {
        at_ = first_;
        ++segment_;
        some_ = false;
      } else {
        begin_round(end_);
      }
    }
  }

  const std::vector<Message>* messages_ = nullptr;
  const FlowParts* parts_ = nullptr;
  std::size_t first_ = 0, end_ = 0;  // range of the round's messages
  std::size_t at_ = 0, segment_ = 0;
  bool some_ = false;  // a message of the round has the segment
};

/// Runs one all-reduce at a time, on the calling thread, in the flow's order (FlowOrder).
///
/// kReceivers: A member posts receives ahead, in the order of rounds, regardless of the sender. A
/// message leaves when it is whole, its receiver has asked for it, and all messages before it to
/// the same member have left. So at a receiver, what a later round needs takes no bandwidth from an
/// earlier round, apart from the few segments that are posted ahead. There is no deadlock: order
/// all segments by round, then by their number, then arbitrarily, and take the first one that has
/// not arrived. What its sender needs is of earlier rounds and so has arrived, and so has all that
/// leaves before it on the same line; hence its sender has posted it. Its receiver awaits it, since
/// all segments before it have arrived.
///
/// kRounds: A member begins a round by sending a word to the members that wait for it, and waits
/// for such words from the members that it waits for. Then it posts all its sends, receives, and
/// waits for its sends. There is no deadlock: once all members have finished the earlier rounds,
/// all words of a round are sent, so all members begin it, so all of its messages are posted at
/// both ends.
///
/// Sums are made in the order of rounds and senders, so they are the same each time.
class ScheduleAllReduce {
 public:
  explicit ScheduleAllReduce(Wire& wire) : wire_(wire) {}

  /// Sums `buffer` over the members, in place; every member ends with the same bytes, and they are
  /// the same each time. Blocks until it is done or the wire fails. Needs: all members use `slot`
  /// for this alone.
  Status all_reduce(const FlowProgram& program, const Buffer& buffer, std::uint64_t slot);

  /// Returns the rank that the running all-reduce is waiting for; -1 if it waits for no rank. Any
  /// thread may call it.
  int waiting_for() const { return awaited_.rank(); }

 private:
  /// Messages to one peer.
  struct Line {
    const FlowLine* messages = nullptr;
    SegmentWalk<FlowSend> next;
    std::vector<std::unique_ptr<WireMessage>> sent;
  };

  void begin(const FlowProgram& program, const Buffer& buffer, std::uint64_t slot);
  Status run_ahead();
  Status run_rounds();
  Status begin_round(const FlowRound& round);
  Status post_receives();
  Status post_sends();
  Status take();
  Status post_sends(Line& line);
  Status finish_sends();

  Wire& wire_;
  AwaitedPeer awaited_;

  // The running all-reduce.
  const FlowProgram* program_ = nullptr;
  FlowParts parts_;
  std::uint64_t slot_ = 0;
  std::size_t stride_ = 0;  // bytes between segments in scratch memory
  SegmentWalk<FlowReceive> posting_, awaiting_;
  std::size_t posted_ = 0, taken_ = 0;
  std::vector<std::unique_ptr<WireMessage>> arriving_;  // a ring of posted receives
  std::vector<char> scratch_;                           // a place for each of them
  std::vector<std::size_t> done_;                       // by receive: segments taken
  std::vector<Line> lines_;
  int open_round_ = 0;  // no message of a later round is posted
  // Words of one byte that members exchange at the begin of a round, and memory for incoming ones.
  std::vector<std::pair<int, std::unique_ptr<WireMessage>>> told_, heard_;
  std::vector<char> words_;
};

}  // namespace agpcs
