// SPDX-License-Identifier: Apache-2.0
// Ways through servers with two ports: in by one and out by the other, balanced at every switch.
#pragma once

#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns, by link, 1 if a ring would run over it that leaves every server by another port than it
/// came by, else 0. Servers are edges between what their ports lead to (a switch, or the cable to
/// another server). Drawn trails that go on as long as they can direct these edges, so that as many
/// lead to each switch as lead away, give or take one. A ring that comes back by the cable that it
/// left by would be closed at once; the directions keep flows away from such cables. Cost:
/// O(links).
std::vector<std::int64_t> orient_servers(const Topology& topology, Rng& rng);

}  // namespace agpcs
