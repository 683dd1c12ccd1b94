// SPDX-License-Identifier: Apache-2.0
// NeighbourClimbs: the last steps of searches, to the best of all neighbours.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace agpcs {

struct ClimbBudget {
  std::int64_t left = 0;  ///< evaluations, and helps that made a strategy fit
  const std::atomic<bool>* interrupted = nullptr;
  bool ended = false;  ///< it was interrupted
};

/// What the nearest neighbours change more: one setting; with `kMoves`, where that finds nothing
/// better, one move, too.
enum class ClimbReach : std::uint8_t { kSettings, kMoves };

/// Climbs of one problem. They remember what they find, so that one that comes where another was
/// takes less time. A climb of `kSettings` that comes where one stood ends there, as that one has
/// gone on from there. Refers to `problem` and the evaluators.
class NeighbourClimbs {
 public:
  /// `evaluators`: one a thread, all of them the problem's. Their number does not change what
  /// climbs find.
  NeighbourClimbs(const Problem& problem, std::vector<Evaluator*> evaluators);
  NeighbourClimbs(const NeighbourClimbs&) = delete;
  NeighbourClimbs& operator=(const NeighbourClimbs&) = delete;
  ~NeighbourClimbs();

  /// Goes from `strategy` to the best of its neighbours, and on from there, until none is clearly
  /// better or the budget ends. Neighbours are what any move of the search leads to, and what any
  /// other setting does: the schedule, micro-batches and how many are in flight, and what a stage
  /// recomputes, divides or has in hosts. The nearest neighbours then change more (`reach`).
  /// Where memory lacks, `fit_memory` and its relatives help. A search draws some moves at a time,
  /// and lists those of memory only where they are likely to pay; here all are tried. Does nothing
  /// to strategies with teams, and with interleaved stages.
  /// Returns how many evaluations it made.
  /// Needs: `score` is that of `strategy`.  Gives: a strategy that is no worse, and its score.
  /// Cost: the budget, and the moves.
  std::int64_t climb(ClimbBudget& budget, Strategy& strategy, Score& score,
                     ClimbReach reach = ClimbReach::kSettings);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Makes one climb on the calling thread; for tests.
std::int64_t climb_neighbours(const Problem& problem, Evaluator& evaluator, ClimbBudget& budget,
                              Strategy& strategy, Score& score,
                              ClimbReach reach = ClimbReach::kSettings);

}  // namespace agpcs
