// SPDX-License-Identifier: Apache-2.0
// search_teams: plans with teams near the best seeds, and near the best plan without teams.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"
#include "planner/seed/pool.h"

#include <atomic>
#include <optional>

namespace agpcs {

/// Returns the best strategy with teams that it finds, if that is better than `plain`, the best
/// strategy without. Climbs from `plain` and from the best seeds with like and with unlike teams,
/// to the first neighbour that is better, until none is. Neighbours: the devices of a stage, or of
/// every stage, in teams of another size, or in none; other numbers of micro-batches; cuts beside a
/// stage with teams by one block or an eighth of it. What changes gets shares anew, and where it
/// has teams a body; stages that get teams no longer recompute or divide state. Where memory lacks,
/// bodies spare it. No stage has teams that divide nothing. The kinds of a stage's devices may have
/// teams of sizes of their own; seeds with other unlike teams stay as they are.
/// Needs: `evaluator` is the problem's. Cost: at most some hundred evaluations.
std::optional<Seed> search_teams(const Problem& problem, Evaluator& evaluator, const Seed& plain,
                                 const SeedPool& seeds, const std::atomic<bool>* interrupted);

}  // namespace agpcs
