// SPDX-License-Identifier: Apache-2.0
// The prologue of a training graph: what is the same in each step.
#pragma once

#include "ir/graph/graph.h"

namespace agpcs {

/// Moves operators that compute from constants alone to `Graph::prologue`, and marks what they make
/// as kPrepared. Stays: what draws random numbers, what makes an output of the graph, and a view of
/// constants that has one reader, which is with its reader for nothing. Ids of operators change.
/// Needs: attentions are not fused. Cost: O(operators + edges).
void make_prologue(Graph& graph);

}  // namespace agpcs
