// SPDX-License-Identifier: Apache-2.0
// Blocks: the planning graph. A block is a set of operators that stay together.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/training.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace agpcs {

/// Operators that stay together, ascending.
struct Block {
  std::vector<OpId> ops;
  double flops = 0;  ///< FLOPs of its operators by Formula 1, forward and backward
};

/// An edge from a block to a later one. It counts each tensor once.
struct BlockEdge {
  int from = 0, to = 0;
  double bytes = 0;  ///< bytes of the tensors on it, forward
};

struct BlockGraph {
  std::vector<Block> blocks;      ///< in topological order, ties to the lower first operator
  std::vector<int> block_of;      ///< by OpId
  std::vector<BlockEdge> edges;   ///< by from, then to
  std::vector<double> cut_bytes;  ///< [i]: bytes of all tensors made before block i and read at or
                                  ///< after it; one entry more than blocks

  std::int64_t samples = 1;  ///< number of samples that `flops` and bytes are for

  int size() const { return static_cast<int>(blocks.size()); }
};

struct BlockOptions {
  /// Chains are joined to blocks of at most (total FLOPs / this number).
  int least_blocks_per_chain = 256;
  /// A graph that still has more blocks is coarsened further: neighbours anywhere are joined until
  /// at most this many blocks are left, or until no two neighbours in one window (see
  /// `make_blocks`) are light. Two neighbours are light when together they stay within the bound on
  /// FLOPs above and within the same fraction of the bytes of parameters.
  int most_blocks = 1000;
  bool cut_modules = true;  ///< cuts may divide modules; if not, those of `whole_modules` are whole
};

/// Coarsens operators to blocks. It joins what must stay together: both ends of a tensor that
/// cannot cross stages (`can_cross`), all users of a state, all operators of one origin
/// (`Op::origin`), all of one module where cuts divide none, and then every cycle that remains.
/// Users of a parameter may part, for several stages may hold it. It also joins what is not worth
/// separating: a view (reshape, ...) with its producer, or if it has no gradient and its tensor has
/// other readers with its first reader; one that moves about what inputs of the graph hold with its
/// only reader, since every stage has inputs; and neighbours on a chain whose joint weight is small
/// (`BlockOptions`), provided that a cut next to the pair costs no more than the cut that goes
/// away. So no cut worth making is lost. FLOPs and bytes are those for `samples` samples under
/// `precision`.
///
/// If there are still many blocks (`BlockOptions::most_blocks`), it joins neighbours anywhere,
/// those with the most bytes between them first. The topological order is divided into windows that
/// each hold 1 / `least_blocks_per_chain` of the FLOPs, at the cheapest cut near each bound.
/// Nothing is joined across these cuts, so they remain. Cost: O((operators + edges) log operators).
BlockGraph make_blocks(const Graph& graph, std::int64_t samples, Precision precision,
                       const BlockOptions& options = {});

/// Returns the strategy's `stage_of`, by operator, for the stages given by block.
std::vector<int> stage_of_ops(const BlockGraph& blocks, const std::vector<int>& stage_of_block);

/// Prints one line for each block (`block 0 flops=12: conv1 relu1`) and edge (`edge 0 1 bytes=64`).
std::string print_blocks(const BlockGraph& blocks, const Graph& graph);

}  // namespace agpcs
