// SPDX-License-Identifier: Apache-2.0
// The one phase of the all-reduce algorithm `tree`.
#pragma once

#include "cost_model/link_model.h"
#include "ir/cluster.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// `all_reduce` (cost_model/link_model.h) of two devices or more by tree. Cost: O(devices + links).
Phase tree_phase(const Cluster& cluster, const std::vector<DeviceId>& devices,
                 const CollectiveFit& fit, std::int64_t bytes);

}  // namespace agpcs
