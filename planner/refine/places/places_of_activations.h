// SPDX-License-Identifier: Apache-2.0
// choose_places_of_activations: whether stages have activations on their devices or in the memory
// of hosts.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

namespace agpcs {

/// Lets stages that keep less than all have activations in the memory of hosts, computed again or
/// not, where that makes the step shorter: all of them, and one by one; a step may also have fewer
/// micro-batches then. As many segments stay on devices as these have memory for. Does nothing
/// where the problem has no activations in hosts, and to strategies with teams and interleaved
/// stages.
/// Needs: `strategy` fits, with `score`; `evaluator` is the problem's.  Gives: a step that is no
/// longer, and its score.  Cost: four evaluations, and some twenty times that of memory, for each
/// stage that keeps less, and for each of up to three smaller numbers of micro-batches; up to
/// twice.
void choose_places_of_activations(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                                  Score& score);

}  // namespace agpcs
