// SPDX-License-Identifier: Apache-2.0
// METIS. This is the only place that calls it.
#pragma once

#include "planner/problem/blocks.h"

#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

enum class MetisObjective : std::uint8_t {
  kCut,     ///< bytes on edges between parts
  kVolume,  ///< bytes that parts send: an output counts once for each other part that reads it
};

struct MetisOptions {
  std::uint64_t seed = 0;
  int imbalance = 30;  ///< a part may exceed its target by this many thousandths
  MetisObjective objective = MetisObjective::kCut;
};

/// Returns the part of each block in a k-way partition, k = targets.size(). Part i has about the
/// fraction `targets[i]` of the FLOPs, and the objective is small. Parts may be empty, and edges
/// may go both ways between two parts. METIS 5.1 draws from libc's `rand`, which `seed` sets: with
/// one C library, same options give the same parts. Not for concurrent use. Needs: k >= 2, targets
/// sum to 1.
Result<std::vector<int>> metis_partition(const BlockGraph& blocks,
                                         const std::vector<double>& targets,
                                         const MetisOptions& options);

/// Makes a partition convex. Orders the parts by the mean position of their FLOPs and renumbers
/// them so. Then removes the edges that go back: it moves blocks either to later parts or to
/// earlier ones, whichever leaves the most loaded part (relative to its target) less loaded.
/// `order[i]` receives the old number of part i. Parts may become empty.
std::vector<int> make_convex(const BlockGraph& blocks, const std::vector<int>& parts,
                             const std::vector<double>& targets, std::vector<int>& order);

/// Cuts the topological order at the targets: each block is in the part in which the middle of its
/// FLOPs falls. The result is convex; parts may be empty.
std::vector<int> cut_at_targets(const BlockGraph& blocks, const std::vector<double>& targets);

}  // namespace agpcs
