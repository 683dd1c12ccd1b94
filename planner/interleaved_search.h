// SPDX-License-Identifier: Apache-2.0
// search_interleaved: plans in which each device has several stages, near the best pipelines.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/plan_stages.h"
#include "planner/problem/problem.h"
#include "planner/seed/pool.h"

#include <optional>

namespace agpcs {

/// Returns the best strategy with interleaved stages that it finds, if its step is clearly shorter
/// than that of `best`. It climbs from the device groups of the best pipelines: those of `best`
/// and of the seeds that are nearly as fast, each at first with two stages a device. Neighbours
/// have more or fewer stages a device, or another number of micro-batches; the first that is better
/// is next, until none is. Cuts and shares are those of a layout (planner/seed/layout); at last,
/// cuts of the best are shifted by one block as long as the step gets shorter. Where memory lacks,
/// stages recompute, at last only as much as they have to. Known strategies with interleaved
/// stages, such as that of a running plan, count as found; without `PlanOptions::interleave`, they
/// alone do. Needs: `evaluator` is the problem's. Cost: at most some hundred evaluations, and as
/// many cuts of a layout.
std::optional<Seed> search_interleaved(const Problem& problem, Evaluator& evaluator,
                                       const Seed& best, const SeedPool& seeds,
                                       const PlanOptions& options);

}  // namespace agpcs
