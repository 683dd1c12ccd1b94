// SPDX-License-Identifier: Apache-2.0
// climb_neighbours: the last steps of a search, to the best of all neighbours.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

#include <atomic>
#include <cstdint>

namespace agpcs {

struct ClimbBudget {
  std::int64_t left = 0;  ///< evaluations, and helps that made a strategy fit
  const std::atomic<bool>* interrupted = nullptr;
  bool ended = false;  ///< it was interrupted
};

/// Goes from `strategy` to the best of its neighbours, and on from there, until none is clearly
/// better or the budget ends. Neighbours are what any move of the search leads to, and what any
/// other setting does: the schedule, micro-batches and how many are in flight, and what a stage
/// recomputes, divides or has in hosts. The nearest neighbours then change one setting more. Where
/// memory lacks, `fit_memory` and its relatives help. A search draws some moves at a time, and
/// lists those of memory only where they are likely to pay; here all are tried. Does nothing to
/// strategies with teams, and with interleaved stages.
/// Returns how many evaluations it made.
/// Needs: `score` is that of `strategy`; `evaluator` is the problem's.  Gives: a strategy that is
/// no worse, and its score.  Cost: the budget, and the moves.
std::int64_t climb_neighbours(const Problem& problem, Evaluator& evaluator, ClimbBudget& budget,
                              Strategy& strategy, Score& score);

}  // namespace agpcs
