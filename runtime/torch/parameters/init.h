// SPDX-License-Identifier: Apache-2.0
// Initial values of weights that the model's file does not contain.
#pragma once

#include "ir/graph/graph.h"

#include <cstdint>
#include <span>

namespace agpcs {

/// Fills `out` (all elements, row-major) with the initial value of a parameter or state tensor:
/// uniform with Kaiming's variance for weights of convolutions and matrix products, N(0, 0.02^2)
/// for embeddings, ones for scales and running variances, zeros for biases and running means.
/// Element i depends only on (seed, name, i), so it is the same on every rank and for any plan.
void initialize(const Graph& graph, TensorId id, std::uint64_t seed, std::span<float> out);

}  // namespace agpcs
