// SPDX-License-Identifier: Apache-2.0
// Blocks: the planning graph. A block is a set of operators that stay together.
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace agpcs {

/// Operators that stay together, ascending.
struct Block {
  std::vector<OpId> ops;
  double flops = 0;  ///< Formula 1 of its operators, forward and backward
};

/// From a block to a later one; carries each tensor once.
struct BlockEdge {
  int from = 0, to = 0;
  double bytes = 0;  ///< of the tensors on it, forward
};

struct BlockGraph {
  std::vector<Block> blocks;      ///< in topological order, ties to the lower first operator
  std::vector<int> block_of;      ///< by OpId
  std::vector<BlockEdge> edges;   ///< by from, then to
  std::vector<double> cut_bytes;  ///< [i]: bytes of all tensors made before block i and read at or
                                  ///< after it; one entry more than blocks

  std::int64_t samples = 1;  ///< that `flops` and bytes are for

  int size() const { return static_cast<int>(blocks.size()); }
};

struct BlockOptions {
  /// Chains are joined to blocks of at most total FLOPs / this.
  int least_blocks_per_chain = 256;
  /// Graphs that have more blocks after that are coarsened further: neighbours anywhere are joined
  /// until there are no more than that, or no two are light (that bound on FLOPs, and the same on
  /// bytes of parameters) and lie in one window (see `make_blocks`).
  int most_blocks = 1000;
};

/// Coarsens operators to blocks. Joined are, as needed: both ends of a tensor that cannot cross
/// stages (`can_cross`), all users of a parameter or state, and whatever lies on a cycle after
/// that; as a matter of cost: a view (reshape, ...) with its producer, and neighbours on a chain
/// whose joint weight is small (`BlockOptions`), provided that a cut next to the pair is not dearer
/// than the one that goes away: so no cut worth making is lost. FLOPs and bytes are those for
/// `samples` samples under `precision`.
///
/// Where blocks are still many (`BlockOptions::most_blocks`), neighbours are joined wherever they
/// are, those with the most bytes between them first. The topological order is divided into windows
/// of 1 / `least_blocks_per_chain` of the FLOPs at the cheapest cut near each bound; nothing is
/// joined across these cuts, which thus remain. Cost: O((operators + edges) log operators).
BlockGraph make_blocks(const Graph& graph, std::int64_t samples, std::string_view precision,
                       const BlockOptions& options = {});

/// The strategy's `stage_of` by operator from stages by block.
std::vector<int> stage_of_ops(const BlockGraph& blocks, const std::vector<int>& stage_of_block);

/// One line a block (`block 0 flops=12: conv1 relu1`), one an edge (`edge 0 1 bytes=64`).
std::string print_blocks(const BlockGraph& blocks, const Graph& graph);

}  // namespace agpcs
