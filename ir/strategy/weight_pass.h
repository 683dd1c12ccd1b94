// SPDX-License-Identifier: Apache-2.0
// What a backward pass may put off: gradients of weights, which nothing waits for but the
// optimizer's step.
#pragma once

#include "ir/graph/graph.h"

namespace agpcs {

/// Returns the number of the input of `op` that is a weight whose gradient a weight pass makes;
/// kNone if the operator is computed by the input pass as a whole. The operators are matrix
/// products with a trained matrix at the right (`MatMul`, `Gemm`) and convolutions (`Conv`): for
/// these, the gradient of the weight is a product of its own. The weight is a parameter, or a view
/// of one. The gradient of a bias is a sum, which the input pass makes. Needs: the backward pass is
/// derived.
int put_off_input(const Graph& graph, OpId op);

/// Returns the part of the backward pass of `op` that is its weight pass: 0 or, where the gradient
/// of a weight is put off, a half; all of it if no gradient flows to the other factor. The two
/// products have the same FLOPs. A time of the whole, measured or not, is parted in this way.
double weight_part(const Graph& graph, OpId op);

}  // namespace agpcs
