// SPDX-License-Identifier: Apache-2.0
// GradientRounding: a rank's gradients in the plan's wire type while they are summed.
#pragma once

#include "runtime/resolved_program.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <memory>
#include <optional>
#include <vector>

namespace agpcs {

/// The buckets that a rank sums with others and that travel in another type than they are held in
/// (`travelling_type`). In the host's memory they are rounded into memory of its own, taken once;
/// in an accelerator's the executor does it.
class GradientRounding {
 public:
  /// Of no bucket.
  GradientRounding() = default;
  /// Needs: `executor` is prepared for `plan`, `program` is of one of its ranks.
  /// Errors: a bucket that is in memory of another type than the plan's; an executor that does not
  /// round on its accelerator.
  static Result<GradientRounding> make(const Plan& plan, const ResolvedProgram& program,
                                       Executor& executor);

  /// Once the bucket has its last gradient of the step: rounds it, where it is one of these.
  Status round(int bucket, Executor& executor);
  /// What is summed in place of the executor's own buffer; null: that itself.
  const Buffer* rounded(int bucket) const;
  /// Once it is summed: the sums in the executor's buffer, where it is one of these.
  Status widen(int bucket, Executor& executor);

 private:
  struct Rounded {
    DType wire = DType::kFp32;
    std::unique_ptr<char[]> memory;  // null: the executor's
    Buffer buffer;
  };
  static Result<Rounded> prepare(const PlanBucket& bucket, int index, DType wire,
                                 Executor& executor);
  std::vector<std::optional<Rounded>> buckets_;  // by bucket of the plan; empty: none of them
};

}  // namespace agpcs
