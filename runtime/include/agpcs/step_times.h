// SPDX-License-Identifier: Apache-2.0
// StepTimes keep when each instruction of the last steps ran on this rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// When an instruction ran, in nanoseconds of std::chrono::steady_clock; 0, 0: it did not run.
struct InstructionTime {
  /// A computation begins when it is called (on an accelerator: when it starts there). In the
  /// host's memory, what a backward pass waits within for sums is left out of its end. A message or
  /// collective begins when it has its turn: it has been posted and the one before it in its stream
  /// is done. From then on it may wait for the other end.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// Processor nanoseconds that the calling thread had for a computation, since the one before it.
  /// Less than end - begin: something else had the processor, or a quota stopped the thread. 0: not
  /// known, as of messages, and of computations on an accelerator (their times come from its
  /// events, and the thread's clock says nothing of them).
  std::int64_t processor = 0;
};

/// Times of one rank's instructions, in program order, for the last steps, in a ring of
/// preallocated rows. Writing allocates nothing. Only one thread may use it at a time.
class StepTimes {
 public:
  /// Makes room for `steps` (at least 1) steps of `instructions` instructions each.
  StepTimes(std::size_t instructions, std::size_t steps)
      : instructions_(instructions), steps_(steps), rows_(instructions * steps) {}

  std::size_t instructions() const { return instructions_; }
  std::size_t capacity() const { return steps_; }
  /// Returns the row of step `step`, which replaces that of step `step - capacity()`.
  InstructionTime* row(std::int64_t step) {
    return rows_.data() + static_cast<std::size_t>(step) % steps_ * instructions_;
  }
  const InstructionTime* row(std::int64_t step) const {
    return rows_.data() + static_cast<std::size_t>(step) % steps_ * instructions_;
  }

 private:
  std::size_t instructions_, steps_;
  std::vector<InstructionTime> rows_;
};

}  // namespace agpcs
