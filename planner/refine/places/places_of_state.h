// SPDX-License-Identifier: Apache-2.0
// choose_places_of_state: whether stages have the optimizer's state on their devices or in the
// memory of hosts.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

namespace agpcs {

/// Lets stages have their state in the memory of hosts, or on their devices again, where that makes
/// the step shorter: all of them, and one by one. A stage whose state is elsewhere keeps what it
/// recomputed and has whole what it divided, as far as there is memory; a step may also have fewer
/// micro-batches, or parted backward passes. Does nothing where the problem does not offload, and
/// to strategies with teams and interleaved stages.
/// Needs: `strategy` fits, with `score`; `evaluator` is the problem's.  Gives: a step that is no
/// longer, and its score.  Cost: an evaluation, and that of `fit_memory`, for each stage and some
/// more, up to three times.
void choose_places_of_state(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                            Score& score);

}  // namespace agpcs
