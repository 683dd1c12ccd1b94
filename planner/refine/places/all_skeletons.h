// SPDX-License-Identifier: Apache-2.0
// best_of_all_skeletons: what a small problem has beside what seeders and searches find.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"
#include "planner/refine/places/neighbours.h"
#include "planner/seed/pool.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace agpcs {

/// Goes through all skeletons of a problem that has few: convex cuts of the blocks into stages, a
/// group of devices for each, and a number of micro-batches. Of devices and of hosts that nothing
/// distinguishes, one order counts. Those whose rough step, with all the memory they want, is not
/// much longer than `best` are completed: shares by speed, each schedule with few and with many
/// micro-batches in flight, whole and divided state, and help where memory lacks. Returns up to
/// `most` that fit, the fastest first, no two of the same cuts and groups, or of equal steps;
/// nothing if there are more than some thousand skeletons, or than some hundred of many blocks.
/// Needs: `evaluator` is the problem's.  Cost: a few rough steps a skeleton, and the
/// budget.
std::optional<std::vector<Seed>> best_of_all_skeletons(const Problem& problem, Evaluator& evaluator,
                                                       const Score& best, std::size_t most,
                                                       ClimbBudget& budget);

}  // namespace agpcs
