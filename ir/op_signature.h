// SPDX-License-Identifier: Apache-2.0
// Signature: everything about an operator that tells its cost from another's.
#pragma once

#include "ir/graph.h"

#include <string>

namespace agpcs {

/// Type, inputs, outputs and attributes as one line without line breaks, the same for any number of
/// samples: "Conv(fp32[n,64,56,56]', fp32[64,64,3,3]*, fp32[64]*) -> fp32[n,64,56,56] {group=1,
/// pads=1,1,1,1, strides=1,1}". An input that gets a gradient has ' after it, a parameter *; an
/// absent one is "-". Integer constants (axes, shapes) have their values; names do not appear.
/// Needs: a graph with its backward derived. Cost: O(the operator).
std::string op_signature(const Graph& graph, OpId op);

}  // namespace agpcs
