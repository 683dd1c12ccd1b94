// SPDX-License-Identifier: Apache-2.0
// roomiest_pipelines: pipelines for memory alone, where it is not known that anything fits.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"
#include "planner/seed/linear_costs.h"

#include <vector>

namespace agpcs {

/// Returns pipelines of one device a stage, on any devices: the one that needs the least part of
/// its devices' memory, or one that fits, with as many micro-batches as there may be, all
/// recomputed, in segments if it needs them to fit, with one micro-batch in flight if it needs that
/// to fit; and where that fits, one with the fewest micro-batches with which such a pipeline fits,
/// which recomputes only where it must. Stages are filled from the last one on. A beam over the
/// numbers of devices of each kind that they take is complete for some hundred different numbers at
/// a time. There is none if there are fewer than two pieces or devices. Needs: `evaluator` and
/// `sums` are the problem's. Cost: O(stages x kinds x log pieces) some ten thousand times.
std::vector<Strategy> roomiest_pipelines(const Problem& problem, Evaluator& evaluator,
                                         const PieceSums& sums);

}  // namespace agpcs
