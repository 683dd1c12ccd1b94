// SPDX-License-Identifier: Apache-2.0
// METIS, called from this one place.
#pragma once

#include "planner/blocks.h"

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
  int imbalance = 30;  ///< a part may exceed its target by that many thousandths
  MetisObjective objective = MetisObjective::kCut;
};

/// The part of each block in a k-way partition, k = targets.size(): part i has about the fraction
/// `targets[i]` of the FLOPs, and the objective is small. Parts may be empty, and edges go both
/// ways between them.
/// METIS 5.1 draws from libc's `rand`, which `seed` sets: same options, same parts, with one C
/// library. Not for concurrent use. Needs: k >= 2, targets sum to 1.
Result<std::vector<int>> metis_partition(const BlockGraph& blocks,
                                         const std::vector<double>& targets,
                                         const MetisOptions& options);

/// Makes a partition convex: parts are ordered by the mean position of their FLOPs and renumbered
/// so; then edges that go back are turned by moving blocks to later parts, or to earlier ones,
/// whichever leaves the most loaded part (relative to its target) less loaded. `order[i]` receives
/// the old number of part i. Parts may become empty.
std::vector<int> make_convex(const BlockGraph& blocks, const std::vector<int>& parts,
                             const std::vector<double>& targets, std::vector<int>& order);

/// The topological order cut at the targets: each block is in the part in which the middle of its
/// FLOPs falls. Convex; parts may be empty.
std::vector<int> cut_at_targets(const BlockGraph& blocks, const std::vector<double>& targets);

}  // namespace agpcs
