// SPDX-License-Identifier: Apache-2.0
// StepEvents: what has happened in the running step, and waiting for it.
#pragma once

#include <agpcs/status.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace agpcs {

/// Events of one step, set once each; a failure ends all waits. All members from any thread.
class StepEvents {
 public:
  explicit StepEvents(std::size_t count) : happened_(count, 0) {}

  /// Forgets all events and wakes `wait_for_step`. A failure stays.
  void begin_step();
  /// Blocks until a step after `seen` has begun, and returns its number. 0 once `stop` was called.
  std::uint64_t wait_for_step(std::uint64_t seen);
  void stop();

  void set(std::size_t event);
  /// Blocks until all of `events` have happened. False when the step has failed or is stopped.
  bool wait(const std::vector<std::size_t>& events);
  bool wait(std::size_t event);
  /// Records the first failure and wakes all. True for the first.
  bool fail(const Status& status);
  Status failure() const;

 private:
  bool ended() const { return stopping_ || !failure_.ok(); }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> happened_;
  std::uint64_t step_ = 0;
  bool stopping_ = false;
  Status failure_;
};

}  // namespace agpcs
