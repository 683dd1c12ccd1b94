// SPDX-License-Identifier: Apache-2.0
// Hops: from which server to which a message can go over switches, and on which shortest way.
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/topology.h"

#include <vector>

namespace agpcs {

/// Shortest ways from every server to its `nearest` servers (all where 0), by number of links, then
/// by server; at most `alternatives` ways for a pair, all of equal length, drawn spread over
/// switches. The topology's own routes where it has them. By from, then links, then to. Cost:
/// O(servers x (links + routes)).
std::vector<FlowRoute> shortest_hops(const Topology& topology, int nearest, int alternatives);

}  // namespace agpcs
