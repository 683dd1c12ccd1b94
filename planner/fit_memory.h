// SPDX-License-Identifier: Apache-2.0
// fit_memory: what makes a strategy fit its devices without other stages or devices.
#pragma once

#include "planner/evaluator.h"
#include "planner/problem.h"

namespace agpcs {

/// Helps each stage that lacks memory, in the way that leaves its slowest device fastest:
/// recomputation; fewer samples for the devices that lack, more for those that do not (a device
/// that has no room for a single sample leaves the stage); or both. False where some stage cannot
/// be helped, with `strategy` as it was. Needs: no buckets; `evaluator` is the problem's.
/// Cost: a few `replica_bytes` for each stage that lacks and each of its kinds.
bool fit_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy);

}  // namespace agpcs
