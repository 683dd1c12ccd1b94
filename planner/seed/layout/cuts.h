// SPDX-License-Identifier: Apache-2.0
// Where the stages of a layout begin and end.
#pragma once

#include "planner/problem/problem.h"
#include "planner/seed/layout/layout.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns the stage with its samples of a micro-batch by its weights.
StageSpec weighted_stage(const Layout::Stage& stage, std::int64_t samples);

/// Returns the stage of each block with which the slowest stage, or cut between two, is fastest for
/// a micro-batch of `samples` samples. Needs: at least as many blocks as stages. Cost: O(stages x
/// blocks^2).
std::vector<int> cut_layout(const Problem& problem, const Layout& layout, std::int64_t samples);

}  // namespace agpcs
