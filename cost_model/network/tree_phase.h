// SPDX-License-Identifier: Apache-2.0
// The single phase of the all-reduce algorithm `tree`.
#pragma once

#include "cost_model/network/link_model.h"
#include "ir/cluster/cluster.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns the phase of `all_reduce` (cost_model/network/link_model.h) over two devices or more by
/// tree. Cost: O(devices + links).
Phase tree_phase(const Cluster& cluster, const std::vector<DeviceId>& devices,
                 const CollectiveFit& fit, std::int64_t bytes);

}  // namespace agpcs
