// SPDX-License-Identifier: Apache-2.0
// choose_divided_updates: whether the devices of a stage divide the optimizer's state.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

namespace agpcs {

/// Lets stages of a pipeline divide the optimizer's state among their devices, or have it whole
/// again, one by one, where that makes the step shorter: each device then updates a part of the
/// parameters, and all gather them. Moves of the search divide state only where some stage does
/// already for want of memory. Does nothing to strategies of one stage, with teams, and with
/// interleaved stages.
/// Needs: `strategy` fits, with `score`; `evaluator` is the problem's.  Gives: a step that is no
/// longer, and its score.  Cost: an evaluation for each stage of several devices.
void choose_divided_updates(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                            Score& score);

}  // namespace agpcs
