// SPDX-License-Identifier: Apache-2.0
// SliceSums: holds slices of a rank's gradients one behind the other while they are summed, where
// the replicas of its stage are unlike teams (ir/plan/body/slices.h).
#pragma once

#include "runtime/replay/resolved_program.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace agpcs {

/// The sums of slices of a program. Memory is allocated once, and has as many elements as the rank
/// holds of the buckets.
class SliceSums {
 public:
  /// Makes one for a program without slices.
  SliceSums() = default;
  /// Needs: `executor` is prepared for `plan`, and `program` is that of one of its ranks.
  /// Errors: a bucket with slices is in an accelerator's memory, or has another size than the plan
  /// says.
  static Result<SliceSums> make(const Plan& plan, const ResolvedProgram& program,
                                Executor& executor);

  /// Takes the slices of `instruction`, which is number `index`, from the bucket in `held`: its own
  /// gradients, or these in a wire type. A copy that does not count is zeros.
  void fill(const ResolvedInstruction& instruction, std::size_t index, const Buffer& held);
  /// Returns the buffer of one of its slices, to be summed.
  Buffer buffer_of(const ResolvedInstruction& instruction, std::size_t index,
                   std::size_t slice) const;
  /// Puts the sums of all of its slices in their places.
  void take(const ResolvedInstruction& instruction, std::size_t index) const;

 private:
  struct Memory {
    std::unique_ptr<char[]> bytes;
    Buffer held;  // where the slices come from
  };
  std::vector<Memory> memory_;  // by instruction; nothing for one without slices
};

}  // namespace agpcs
