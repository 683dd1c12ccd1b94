// SPDX-License-Identifier: Apache-2.0
// Finds the attentions of a graph that one kernel can compute without writing the scores (Dao et
// al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS
// 2022), and marks them, so that costs and memory are those of such a kernel.
#pragma once

#include "ir/graph/graph.h"

namespace agpcs {

/// Marks attentions as fused (`Graph::fused`), and nothing else: operators, order and digest stay.
/// An attention is an `Attention` that does not output its scores, or a product of queries and
/// keys, a softmax over the keys, and the product with the values. Between these, operators may
/// scale, mask, cast, cap or drop scores, as long as nothing else reads them. Queries, keys and
/// values have a batch axis: products with a parameter are layers. Needs: a graph with its backward
/// derived. Cost: O(operators + edges).
void fuse_attention(Graph& graph);

}  // namespace agpcs
