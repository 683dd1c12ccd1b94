// SPDX-License-Identifier: Apache-2.0
// memory_moves: the moves that change what the devices of a stage keep.
#pragma once

#include "planner/problem/problem.h"
#include "planner/refine/moves/strategy_move.h"

#include <vector>

namespace agpcs {

/// Lists recomputation by stage and by segment, what stages divide, what they have in flight, and
/// where they have the optimizer's state. `parameters`: elements, by block. `starved`: a stage that
/// has too few micro-batches in flight, or kNoStage. Cost: O(blocks + devices + moves).
std::vector<SetMemory> memory_moves(const Problem& problem, const Strategy& strategy,
                                    const std::vector<double>& parameters, int starved);

}  // namespace agpcs
