// SPDX-License-Identifier: Apache-2.0
// One round of coarsening: chooses pairs of neighbours of an acyclic graph such that the graph
// stays acyclic when all of them are joined.
#pragma once

#include <vector>

namespace agpcs {

struct BlockGraph;

/// Limits on what a joined pair may weigh, and on which blocks may be joined.
struct JoinLimits {
  double most_flops = 0;
  double most_parameters = 0;           ///< bytes
  std::vector<double> parameter_bytes;  ///< by block
  std::vector<int> window;              ///< by block; both blocks of a pair lie in one window
};

/// Returns, for each block, the block that it is joined with, or -1. It chooses at most `most`
/// pairs: those with the most bytes between them first, then the lighter, then the lower. Cost:
/// O(edges log edges).
///
/// A pair is an edge between neighbouring levels; a block's level is the length of the longest path
/// from a source to it. A cycle through joined pairs never goes down a level, so all its pairs
/// begin on one level. Each of them has an edge from its lower block to the upper block of another
/// pair, and an edge from the lower block of another pair to its upper block. A pair that would
/// have both edges when its turn comes is not chosen (Herrmann et al., SIAM J. Sci. Comput. 41(4),
/// 2019, section 4.1, forbid such edges likewise).
std::vector<int> pairs_to_join(const BlockGraph& graph, const JoinLimits& limits, int most);

/// Returns, for each block, the number of its window. The `windows` windows are runs of the
/// topological order with about equal FLOPs. Each bound between two lies at the cheapest cut within
/// half a window before or after it.
std::vector<int> windows_of(const BlockGraph& graph, int windows);

}  // namespace agpcs
