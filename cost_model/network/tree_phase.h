// SPDX-License-Identifier: Apache-2.0
// The single phase of the all-reduce algorithm `tree`.
#pragma once

#include "cost_model/network/link_model.h"
#include "ir/cluster/cluster.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns the phase of `all_reduce` (cost_model/network/link_model.h) over two devices or more by
/// tree. Cost: O(devices + links).
Phase tree_phase(const Cluster& cluster, const std::vector<DeviceId>& devices,
                 const CollectiveFit& fit, std::int64_t bytes);

/// Half of such an all-reduce: the bytes go up to the root, or down from it.
struct TreeHalf {
  Phase phase;
  std::size_t root = 0;  ///< index of the root's device
};
TreeHalf tree_half(const Cluster& cluster, const std::vector<DeviceId>& devices,
                   const CollectiveFit& fit, bool up, std::int64_t bytes);

/// What does not depend on the number of bytes of such a phase.
struct TreeShape {
  Phase phase;       ///< one flow, whose bytes and stretch are not set
  double first = 1;  ///< how long the first piece takes, in times of a piece
};
TreeShape tree_shape(const Cluster& cluster, const std::vector<DeviceId>& devices,
                     const CollectiveFit& fit);
/// Sets the bytes, which makes the phase that of `tree_phase`.
void set_tree_bytes(TreeShape& shape, const CollectiveFit& fit, std::int64_t bytes);

}  // namespace agpcs
