// SPDX-License-Identifier: Apache-2.0
// Evaluator: what a step of a strategy takes, for searches that ask many times.
#pragma once

#include "planner/problem.h"

#include <cstdint>
#include <memory>

namespace agpcs {

/// A strategy's step in a few figures.
struct Score {
  double step_seconds = 0;
  double exposed_communication = 0;  ///< sum over ranks, in rank order
  std::int64_t lacking = 0;          ///< bytes on the device that lacks most; at most 0: it fits
  bool fits() const { return lacking <= 0; }
};

/// Equal to the last bit to `simulate` and `peak_memory` of the plan that `lower` makes of the
/// strategy: the same instructions of codegen run in the same engine. What did not change since
/// some evaluation before is looked up: programs by the shape of the pipeline, sums of seconds and
/// memory by the operators of a stage, exchanges by group and bytes. Repeated shapes allocate
/// nothing. Results do not depend on what was evaluated before.
///
/// Refers to `problem`. Not for concurrent use: one for each thread.
class Evaluator {
 public:
  explicit Evaluator(const Problem& problem);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept;
  Evaluator& operator=(Evaluator&&) noexcept;

  /// Needs: `strategy` verifies. Without buckets its gradients are grouped by the problem's
  /// `bucket_bytes`, as `group_gradients` does.
  /// Cost: O(operators), a small constant; O(instructions of all ranks x log of those at a time).
  Score evaluate(const Strategy& strategy);
  /// `evaluate(strategy).lacking` alone, without running the step or grouping gradients.
  std::int64_t lacking(const Strategy& strategy);
  /// `group_gradients` of the strategy with the problem's `bucket_bytes`, looked up.
  Strategy grouped(Strategy strategy);
  /// Peak bytes of a device of `stage` that has `samples` samples of each micro-batch, with or
  /// without recomputation, and all else as in `strategy`.
  std::int64_t replica_bytes(const Strategy& strategy, int stage, std::int64_t samples,
                             bool recompute);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace agpcs
