// SPDX-License-Identifier: Apache-2.0
// FlowReducer: all-reduces along flows over a wire, by point-to-point messages and local sums.
#pragma once

#include "runtime/awaited_peer.h"
#include "runtime/flow_program.h"
#include "runtime/wire.h"

#include <agpcs/executor.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {

/// A buffer as a flow cuts it: parts, which travel in segments.
struct FlowParts {
  Buffer buffer;
  std::int64_t parts = 1;

  static constexpr std::size_t kSegmentBytes = std::size_t{1} << 20;
  std::size_t bytes_of(int part) const;
  std::size_t segments_of(int part) const;  ///< 0 for an empty one
  std::size_t bytes_of(int part, std::size_t segment) const;
  char* place_of(int part, std::size_t segment) const;
};

/// Walks over the segments of messages: those of a round before those of the next, of these all
/// first segments, then all second ones, and so on, so that the messages of a round go on side by
/// side.
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
  /// Nothing is left of rounds up to `last`.
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
  // To the next message that has the segment; after the last one, to the next segment or round.
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
  std::size_t first_ = 0, end_ = 0;  // of the round
  std::size_t at_ = 0, segment_ = 0;
  bool some_ = false;  // message of the round has the segment
};

/// Runs one all-reduce at a time, on the calling thread, in the flow's order (FlowOrder).
///
/// kReceivers: receives are posted ahead, in the order of rounds whoever sends them, and a message
/// leaves when it is whole, its receiver has asked for it, and those before it to the same member
/// have left. So what a later round needs takes no bandwidth at its receiver from what an earlier
/// one does, beyond the few segments that are posted ahead. Nobody waits for ever: order all
/// segments by round, then by their number, then somehow; take the first that has not arrived. What
/// its sender needs is of earlier rounds and so has arrived, as has all that leaves before it on
/// the same line; so it was posted. Its receiver awaits it, since all that comes before it has
/// arrived.
///
/// kRounds: a member begins a round by telling those that wait for it that it is there, then waits
/// for their like; then it posts all that it sends, receives, and lets its sends end. Nobody waits
/// for ever: once all are through with earlier rounds, all words of a round are sent, so all begin
/// it, so all of its messages are posted at both ends.
///
/// Sums are made in the order of rounds and senders, and are the same each time.
class FlowReducer {
 public:
  explicit FlowReducer(Wire& wire) : wire_(wire) {}

  /// Sums `buffer` over the members, in place; every member ends with the same bytes, and with the
  /// same ones each time. Blocks until done or until the wire fails. Needs: all members use `slot`
  /// for this alone.
  Status all_reduce(const FlowProgram& program, const Buffer& buffer, std::uint64_t slot);

  /// The rank that the running all-reduce is waiting for; -1 when it waits for none. Any thread.
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
  std::size_t stride_ = 0;  // of scratch memory
  SegmentWalk<FlowReceive> posting_, awaiting_;
  std::size_t posted_ = 0, taken_ = 0;
  std::vector<std::unique_ptr<WireMessage>> arriving_;  // a ring of those posted
  std::vector<char> scratch_;                           // for as many
  std::vector<std::size_t> done_;                       // by receive: segments
  std::vector<Line> lines_;
  int open_round_ = 0;  // nothing of later ones is posted
  // Words of a byte from member to member, and where those that come go.
  std::vector<std::pair<int, std::unique_ptr<WireMessage>>> told_, heard_;
  std::vector<char> words_;
};

}  // namespace agpcs
