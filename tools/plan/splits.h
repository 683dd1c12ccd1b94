// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan splits`: how a team of devices can divide the operators of a model.
#pragma once

#include "ir/graph/graph.h"

#include <string>

namespace agpcs {

/// Returns, for each kind of operator that the graph has, those with the most work first, the
/// splits that the table knows: how many members each allows at most, and how inputs and outputs
/// then lie. Operators that cannot be divided follow, each with the reason. Needs: a graph with its
/// backward derived.
std::string splits_text(const Graph& graph);

}  // namespace agpcs
