// SPDX-License-Identifier: Apache-2.0
// choose_divided_updates: what of their state the devices of a stage divide.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

namespace agpcs {

/// Lets stages divide the optimizer's state among their devices, or more, or have it whole again,
/// one by one, where that makes the step shorter: each device then updates a part of the
/// parameters. Where these are divided, too, they are gathered beside the next step's passes, not
/// behind the update. Moves of the search divide state only where some stage does already for want
/// of memory. Does nothing to strategies with teams, and with interleaved stages.
/// Needs: `strategy` fits, with `score`; `evaluator` is the problem's.  Gives: a step that is no
/// longer, and its score.  Cost: up to three evaluations for each stage of several devices.
void choose_divided_updates(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                            Score& score);

}  // namespace agpcs
