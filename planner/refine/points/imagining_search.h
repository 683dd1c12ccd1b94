// SPDX-License-Identifier: Apache-2.0
// The searches that the search proper imagines.
#pragma once

#include "planner/evaluate/rough/fit.h"
#include "planner/refine/points/strategy_point.h"

#include <memory>
#include <span>
#include <vector>

namespace agpcs {

/// The imagined point: a strategy costs its rough step.
class ImaginingSearch final : public StrategyPoint {
 public:
  ImaginingSearch(const Problem& problem, std::span<const std::unique_ptr<SearchWorker>> worker,
                  double reference, MoveHelp help)
      : StrategyPoint(problem, worker, reference, help) {}

  /// Stands at `start` and keeps it. `off` is what makes `fit` right there.
  void begin(Strategy start, const RoughFit& fit, double off);
  void go_to_start(int /*start*/) override { stand_at(start_); }

  /// A walk proposes most moves from a place several times. What is known of them suffices, as a
  /// move that costs more than the search looks at is not taken.
  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override;

 private:
  Guess& guess_of(const Move& move);

  Score score_of(SearchWorker& worker, const Strategy& strategy, const RoughStep& rough) override;
  Strategy with_buckets(const Strategy& strategy) override { return strategy; }
  bool needs_buckets(const Strategy& /*strategy*/) const override { return false; }

  RoughFit fit_;
  double off_ = 0;
  Place start_;
};

}  // namespace agpcs
