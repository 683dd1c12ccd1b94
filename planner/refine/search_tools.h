// SPDX-License-Identifier: Apache-2.0
// What searches of one problem work out and remember.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/known_scores.h"
#include "planner/evaluate/memory_bound.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/problem.h"
#include "planner/refine/moves/moves.h"
#include "planner/refine/search.h"

#include <memory>
#include <vector>

namespace agpcs {

/// The tools of one thread.
struct SearchWorker {
  explicit SearchWorker(const Problem& problem)
      : evaluator(problem), moves(problem), rough_model(problem), memory(problem) {}
  RoughStep rough(const Strategy& strategy) {
    return rough_model.step(strategy, moves.timers().of(strategy));
  }
  Evaluator evaluator;
  StrategyMoves moves;
  RoughModel rough_model;
  MemoryBound memory;
};

struct SearchTools::Impl {
  Impl(const Problem& problem_of_all, int threads) : problem(problem_of_all) {
    for (int i = 0; i < threads; ++i) workers.push_back(std::make_unique<SearchWorker>(problem));
  }
  /// Without workers. Refers to `before`.
  Impl(const Problem& problem_of_all, const KnownScores& before)
      : problem(problem_of_all), scores(&before) {}
  const Problem& problem;
  std::vector<std::unique_ptr<SearchWorker>> workers;
  KnownScores scores;
};

}  // namespace agpcs
