// SPDX-License-Identifier: Apache-2.0
// Ways through servers with two ports: in by one and out by the other, balanced at every switch.
#pragma once

#include "ir/rng.h"
#include "ir/topology.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// By link: 1 where a ring that leaves every server by another port than the one that it came by
/// would run, 0 elsewhere. Servers are edges between what their ports lead to (a switch, or the
/// cable to another server); these edges are directed along drawn trails that go on as long as they
/// can, so that as many lead to each switch as lead away, give or take one. A ring that comes back
/// by the cable it left by would be closed at once: this keeps flows apart from those. Cost:
/// O(links).
std::vector<std::int64_t> orient_servers(const Topology& topology, Rng& rng);

}  // namespace agpcs
