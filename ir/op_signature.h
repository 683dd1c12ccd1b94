// SPDX-License-Identifier: Apache-2.0
// Signature: everything about an operator that tells its cost from another's.
#pragma once

#include "ir/graph.h"

#include <string>

namespace agpcs {

/// Type, inputs, outputs and attributes as one line without line breaks, the same for any number of
/// samples: "Conv(fp32[n,64,56,56]', fp32[64,64,3,3]*', fp32[64]*') -> fp32[n,64,56,56] {group=1,
/// pads=1,1,1,1, strides=1,1}". A parameter has * after it, an input that gets a gradient '; an
/// absent one is "-", one that repeats the first "#1". An output with +1 after it has the gradients
/// of two consumers summed up. Constants of integers (axes, shapes) and single numbers have their
/// values, long ones a digest of them; names do not appear.
/// Needs: a graph with its backward derived. Cost: O(the operator and its outputs' consumers).
std::string op_signature(const Graph& graph, OpId op);

}  // namespace agpcs
