// SPDX-License-Identifier: Apache-2.0
// Rings over groups of servers that fast links join. A chunk goes from group to group on a ring,
// and is spread inside each group as soon as it arrives.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <vector>

namespace agpcs {

/// Returns the downward trees of such schedules, one forest for each grouping that applies. A group
/// is what links of at least some capacity join; groups are of equal size, and there are several.
/// Ring j runs over the j-th servers of the groups; there are as many rings as fit on the links
/// together. Empty if there is no such grouping or no ring.
std::vector<FlowForest> group_forests(const Topology& topology, int sub_chunks, const Rng& rng);

}  // namespace agpcs
