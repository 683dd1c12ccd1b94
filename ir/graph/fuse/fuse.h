// SPDX-License-Identifier: Apache-2.0
// fuse_operators: puts together what exporters take apart.
#pragma once

#include "ir/graph/graph.h"

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns the types of operators that `fuse_operators` makes, sorted.
std::vector<std::string_view> fusible_types();

/// Replaces operators that together compute one of ONNX's own by that one: LayerNormalization,
/// RMSNormalization, Gelu (exact or by tanh) and Swish, where `types` has it. The value is the same
/// but for rounding. The operator keeps name and output of the last one that it replaces; it has
/// the version of the model's opset, or else the first that ONNX has it in. What it replaces makes
/// nothing that others read, and is of one module and of one node of PyTorch's graph, where the
/// file notes these: PyTorch computes nodes one by one, and cuts may lie between them. Constants
/// that nothing reads any more are removed.
/// Needs: a forward graph. Gives: `fused_types` has the types that were made. Cost: O(operators).
void fuse_operators(Graph& graph, const std::vector<std::string_view>& types);

}  // namespace agpcs
