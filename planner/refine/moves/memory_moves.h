// SPDX-License-Identifier: Apache-2.0
// add_memory_moves: the moves that change what the devices of a stage keep.
#pragma once

#include "planner/problem/problem.h"
#include "planner/refine/moves/strategy_move.h"

#include <vector>

namespace agpcs {

/// Adds to `moves` recomputation by stage and by segment, what stages divide, what they have in
/// flight, and where they have the optimizer's state. `parameters`: elements, by block. `starved`:
/// a stage that has too few micro-batches in flight, or kNoStage. Cost: O(blocks + devices +
/// moves).
void add_memory_moves(const Problem& problem, const Strategy& strategy,
                      const std::vector<double>& parameters, int starved,
                      std::vector<SetMemory>& moves);

}  // namespace agpcs
