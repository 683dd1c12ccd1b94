// SPDX-License-Identifier: Apache-2.0
// Evaluator: the step time of a strategy, for searches that ask many times.
#pragma once

#include "planner/problem/problem.h"

#include <cstdint>
#include <memory>

namespace agpcs {

/// A strategy's step in a few figures.
struct Score {
  double step_seconds = 0;
  double exposed_communication = 0;  ///< sum over ranks, in rank order
  std::int64_t lacking = 0;          ///< bytes on the device that lacks most; at most 0 if it fits
  bool whole = true;  ///< false: the step takes at least `step_seconds`, and nothing more is known
  bool fits() const { return lacking <= 0; }
};

/// Gives what `simulate` and `peak_memory` give for the plan that `lower` makes of the strategy,
/// equal to the last bit: the same instructions of codegen run in the same engine (`StepEngine`).
/// It looks up what it worked out in an earlier evaluation: programs by the shape of the pipeline,
/// sums of seconds and memory by the operators of a stage, all-reduces by device group and bytes.
/// Repeated shapes allocate nothing. Results do not depend on what was evaluated before.
///
/// Of strategies with unlike teams it looks nothing up: it lowers and simulates them, whatever
/// `most` says, and does not leave out their sums (`seconds_without_sums`).
///
/// Refers to `problem`. Not for concurrent use: each thread has its own.
class Evaluator {
 public:
  explicit Evaluator(const Problem& problem);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept;
  Evaluator& operator=(Evaluator&&) noexcept;

  /// Needs: `strategy` verifies. If it has no buckets, its gradients are grouped by the problem's
  /// `bucket_bytes`, as `group_gradients` does. Cost: O(operators) with a small constant, and
  /// O(instructions of all ranks x log of those that run at a time).
  Score evaluate(const Strategy& strategy);
  /// The same, but where the step takes more than `most` seconds, or memory lacks, it may find that
  /// out in less time: the score is then not whole, with more than `most` seconds if it fits.
  Score evaluate_up_to(const Strategy& strategy, double most);
  /// Returns the seconds of the step if the all-reduces of `stage`, or of every stage
  /// (kEveryStage), took no time: however they are made, the step hardly gets shorter. Those of
  /// buckets that stages share take their time. Same needs and cost.
  double seconds_without_sums(const Strategy& strategy, int stage);
  static constexpr int kEveryStage = -1;
  /// Returns `evaluate(strategy).lacking` without running the step or grouping gradients.
  std::int64_t lacking(const Strategy& strategy);
  /// Returns what `group_gradients` gives with the problem's `bucket_bytes`, looked up.
  Strategy grouped(Strategy strategy);
  /// Returns the peak bytes of a device of `stage` that has `samples` samples of each micro-batch,
  /// with or without recomputation. All else is as in `strategy`. If the stage divides its state,
  /// what it divides does not count.
  std::int64_t replica_bytes(const Strategy& strategy, int stage, std::int64_t samples,
                             const Recomputation& recompute);
  /// Returns how many seconds longer the passes of a micro-batch take on a device of `kind` and
  /// `stage` with `samples` samples because `recompute` has activations in the memory of the host.
  double copy_waits(const Strategy& strategy, int stage, int kind, std::int64_t samples,
                    const Recomputation& recompute);
  /// Returns the bytes of what devices of `stage` divide.
  std::int64_t divided_bytes(const Strategy& strategy, int stage);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace agpcs
