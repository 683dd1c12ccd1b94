// SPDX-License-Identifier: Apache-2.0
// FlowReducer: all-reduces along flows over a wire, by point-to-point messages and local sums.
#pragma once

#include "runtime/flow_program.h"
#include "runtime/wire.h"

#include <agpcs/executor.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace agpcs {

/// Runs one all-reduce at a time, on the calling thread and one more for each further lane of its
/// flow: a wire can wait for one message only.
///
/// A chunk travels in segments. Receives are posted ahead of those that are awaited; what has come
/// is added, or is in its place, and leaves at once where it is next in its line. So nothing waits
/// but for data, for earlier messages between the same two members, and for its turn in a sum.
///
/// Nobody waits for ever. Order all messages by step and then, within one, somehow; of those that
/// have not arrived take the first. All that its sender needs comes before it and is there, as is
/// all that its line has before it; so it has left. Its receiver has posted it: what its lane waits
/// for before it comes before it, and so do the sums that these wait for.
class FlowReducer {
 public:
  explicit FlowReducer(Wire& wire);
  ~FlowReducer();
  FlowReducer(const FlowReducer&) = delete;
  FlowReducer& operator=(const FlowReducer&) = delete;

  /// Makes ready for `program`. Between all-reduces only.
  void prepare(const FlowProgram& program);

  /// Sums `buffer` over the members, in place; every member ends with the same bytes, and with the
  /// same ones each time. Blocks until done or until the wire fails; when it fails in one lane, it
  /// is cancelled for all. Needs: `prepare(program)`; all members use `slot` for this alone.
  Status all_reduce(const FlowProgram& program, const Buffer& buffer, std::uint64_t slot);

  /// A rank that the running all-reduce is waiting for; -1 when it waits for none. Any thread.
  int waiting_for() const;

 private:
  class Segments;  // of a lane, in the order in which they come
  struct Arrival;
  struct Lane;
  struct Line;

  // Threads.
  void run_lane_thread(std::size_t lane);
  void run_other_lanes(std::size_t lanes);
  void await_other_lanes();

  // One all-reduce.
  void begin(const FlowProgram& program, const Buffer& buffer, std::uint64_t slot);
  Status post_receives(Lane& lane);
  Status run_lane(Lane& lane);
  Status take(Lane& lane, const Arrival& arrival);
  Status await_turn(int receive, std::size_t segment);
  Status post_sends(Line& line);
  Status finish_sends();
  void fail(const Status& status);

  char* place(int chunk, std::size_t segment) const;
  std::size_t segments_of(int chunk) const;
  std::size_t segment_bytes(int chunk, std::size_t segment) const;

  Wire& wire_;

  // The running all-reduce.
  const FlowProgram* program_ = nullptr;
  Buffer buffer_;
  std::uint64_t slot_ = 0;
  std::size_t stride_ = 0;  // of scratch memory
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::array<std::atomic<int>, FlowProgram::kMostLanes> waiting_for_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> done_;  // by receive: its segments that are added or in their place
  Status failure_;

  std::vector<std::thread> threads_;  // lane i + 1 on thread i
  std::uint64_t called_ = 0;          // all-reduces that threads were called for
  std::size_t active_ = 0;            // lanes of the last one
  std::size_t running_ = 0;           // of the other lanes
  bool stopping_ = false;
};

}  // namespace agpcs
