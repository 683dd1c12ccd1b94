// SPDX-License-Identifier: Apache-2.0
// Signature: everything about an operator that its cost depends on.
#pragma once

#include "ir/graph/graph.h"

#include <optional>
#include <string>
#include <string_view>

namespace agpcs {

/// Prints the type, inputs, outputs and attributes of an operator as one line without line breaks.
/// The line is the same for any number of samples: "Conv(fp32[n,64,56,56]', fp32[64,64,3,3]*',
/// fp32[64]*') -> fp32[n,64,56,56] {group=1, pads=1,1,1,1, strides=1,1}".
/// A parameter has * after it, and an input that gets a gradient has '. An absent input is "-"; one
/// that repeats the first input is "#1". +1 after an output means one addition: the gradients of
/// two consumers are summed. Constants of integers (axes, shapes) and single numbers show their
/// values; long ones show a digest of them. Names do not appear. Needs: a graph with its backward
/// derived. Cost: O(the operator and its outputs' consumers).
std::string op_signature(const Graph& graph, OpId op);

/// Returns a graph whose operator 0 has this signature and thus its cost; absent for a text that is
/// no signature, and for an operator of a fused attention. The values of constants, and attributes
/// that are texts, are lost. Only what `op_cost` needs of the operator is there: the graph is not
/// one that verifies. Cost: O(text).
std::optional<Graph> graph_of_signature(std::string_view signature);

}  // namespace agpcs
