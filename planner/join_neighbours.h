// SPDX-License-Identifier: Apache-2.0
// One round of coarsening: pairs of neighbours of an acyclic graph, such that joining all of them
// leaves it acyclic.
#pragma once

#include <vector>

namespace agpcs {

struct BlockGraph;

/// What a joined pair may weigh, and what may be joined.
struct JoinLimits {
  double most_flops = 0;
  double most_parameters = 0;           ///< bytes
  std::vector<double> parameter_bytes;  ///< by block
  std::vector<int> window;              ///< by block: pairs are of one window
};

/// By block: the block that it is joined with, or -1. At most `most` pairs, those with the most
/// bytes between them first, then the lighter, then the lower. Cost: O(edges log edges).
///
/// Both ends of an edge are on neighbouring levels, level being the longest way from a source. A
/// cycle through joined pairs never goes down a level, so all its pairs begin on one level; each
/// has an edge from its lower block to the upper one of another pair, and one from the lower block
/// of another pair to its upper block. A pair that would have both when it is chosen is not chosen
/// (Herrmann et al., SIAM J. Sci. Comput. 41(4), 2019, section 4.1, forbid such edges likewise).
std::vector<int> pairs_to_join(const BlockGraph& graph, const JoinLimits& limits, int most);

/// By block, the window it is in: runs of the topological order of about equal FLOPs, `windows` of
/// them, each bound moved to the cheapest cut in half a window before and after.
std::vector<int> windows_of(const BlockGraph& graph, int windows);

}  // namespace agpcs
