// SPDX-License-Identifier: Apache-2.0
// climb_neighbours: the last steps of a search, to the best of all neighbours.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

#include <cstdint>

namespace agpcs {

/// Goes from `strategy` to the best of its neighbours, and on from there, until none is better or
/// `most` evaluations are made. Neighbours are what any move of the search leads to, and what any
/// other setting does: the schedule, micro-batches and how many are in flight, and what a stage
/// recomputes, divides or has in hosts. The nearest neighbours then change one setting more. Where
/// memory lacks, `fit_memory` helps. A search draws some moves at a time, and lists those of memory
/// only where they are likely to pay; here all are tried. Does nothing to strategies with teams,
/// and with interleaved stages. Needs: `score` is that of `strategy`; `evaluator` is the problem's.
/// Gives: a strategy that is no worse, and its score.  Cost: `most` evaluations, as many times help
/// with memory, and the moves.
/// Returns how many evaluations it made.
std::int64_t climb_neighbours(const Problem& problem, Evaluator& evaluator, std::int64_t most,
                              Strategy& strategy, Score& score);

}  // namespace agpcs
