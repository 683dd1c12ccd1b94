// SPDX-License-Identifier: Apache-2.0
// Finds the attentions of a graph that one kernel can compute without writing the scores (Dao et
// al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS
// 2022), so that costs and memory are those of such a kernel.
#pragma once

#include "ir/graph/graph.h"

#include <cstddef>

namespace agpcs {

/// Returns true for an `Attention` that does not output its scores: one kernel always computes it.
bool is_one_kernel(const Op& op);

/// Marks attentions in steps as fused (`Graph::fused`), and nothing else: operators, order and
/// digest stay. An attention in steps is a product of queries and keys, a softmax over the keys,
/// and the product with the values. Between these, operators may scale, mask, cast, cap or drop
/// scores, as long as nothing else reads them. Queries, keys and values have a batch axis: products
/// with a parameter are layers. Needs: a graph with its backward derived. Cost: O(operators +
/// edges).
void fuse_attention(Graph& graph);

/// Returns how many attentions one kernel computes.
std::size_t count_fused_attentions(const Graph& graph);

}  // namespace agpcs
