// SPDX-License-Identifier: Apache-2.0
// StepTimes: when each instruction of the last steps ran on this rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Nanoseconds of std::chrono::steady_clock; 0, 0: not run.
struct InstructionTime {
  /// A computation: when it was called (on an accelerator: when it ran there). A message or
  /// collective: when it had its turn, that is when it had been posted and the one before it in its
  /// stream was done; it may have waited for the other end from there.
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Times of one rank's instructions, in program order, for the last steps: a ring of preallocated
/// rows. Writing allocates nothing. Not for several threads at once.
class StepTimes {
 public:
  /// Room for `steps` (at least 1) steps of `instructions` instructions.
  StepTimes(std::size_t instructions, std::size_t steps)
      : instructions_(instructions), steps_(steps), rows_(instructions * steps) {}

  std::size_t instructions() const { return instructions_; }
  std::size_t capacity() const { return steps_; }
  /// The row of step `step`, in place of that of `step - capacity()`.
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
