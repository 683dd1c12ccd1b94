// SPDX-License-Identifier: Apache-2.0
// GradientRounding: holds a rank's gradients in the plan's wire type while they are summed.
#pragma once

#include "runtime/replay/resolved_program.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <memory>
#include <optional>
#include <vector>

namespace agpcs {

/// The buckets that a rank sums with others and that travel in another type than they are held in
/// (`travelling_type`). Buckets in the host's memory are rounded into memory of its own, which is
/// allocated once; buckets in an accelerator's memory are rounded by the executor.
class GradientRounding {
 public:
  /// Makes one for no bucket.
  GradientRounding() = default;
  /// Needs: `executor` is prepared for `plan`; `program` belongs to one of its ranks.
  /// Errors: a bucket is in memory of another type than the plan's; the executor cannot round on
  /// its accelerator.
  static Result<GradientRounding> make(const Plan& plan, const ResolvedProgram& program,
                                       Executor& executor);

  /// Rounds the bucket if it is one of these. Needs: it has its last gradient of the step.
  Status round(int bucket, Executor& executor);
  /// Returns the buffer to sum in place of the executor's own; null: sum the executor's own.
  const Buffer* rounded(int bucket) const;
  /// Writes the sums to the executor's buffer if the bucket is one of these. Needs: it is summed.
  Status widen(int bucket, Executor& executor);

 private:
  struct Rounded {
    DType wire = DType::kFp32;
    char* memory = nullptr;  // null: the executor's memory
    Buffer buffer;
  };
  static Result<Rounded> prepare(const PlanBucket& bucket, int index, DType wire,
                                 Executor& executor);
  std::vector<std::optional<Rounded>> buckets_;  // by bucket of the plan; empty for other buckets
  /// One for each bucket, and one for all of which ranks divide gradients.
  std::vector<std::unique_ptr<char[]>> memory_;
};

}  // namespace agpcs
