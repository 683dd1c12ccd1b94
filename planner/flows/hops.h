// SPDX-License-Identifier: Apache-2.0
// Hops: from which server to which a message can go over switches, and on which shortest ways.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"

#include <vector>

namespace agpcs {

/// Returns the shortest ways from every server to its `nearest` servers (to all if 0), near by
/// number of links, then by server. A pair has at most `alternatives` ways, all of equal length,
/// drawn such that they spread over switches. If the topology has routes of its own, returns these.
/// The order is by from, then links, then to. Cost: O(servers x (links + routes)).
std::vector<FlowRoute> shortest_hops(const Topology& topology, int nearest, int alternatives);

}  // namespace agpcs
