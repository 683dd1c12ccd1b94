// SPDX-License-Identifier: Apache-2.0
// What a training graph uses its inputs for: labels, targets, indices.
#pragma once

#include "ir/graph/graph.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns how many values an integer input may take: the least over its uses as indices of an
/// embedding and as labels of a loss. 0: no use limits it.
std::int64_t range_of(const Graph& graph, TensorId id);

/// Tells whether `op` is a loss whose labels are `id`.
bool is_label_of(const Op& op, TensorId id);

/// Returns the losses that take the values of `id` as labels, as they are or in another
/// arrangement.
std::vector<OpId> losses_of_labels(const Graph& graph, TensorId id);

/// Returns true for the targets y of a binary cross entropy, softplus(x) - x y.
bool is_binary_target(const Graph& graph, TensorId id);

}  // namespace agpcs
