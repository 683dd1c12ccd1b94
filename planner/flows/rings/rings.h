// SPDX-License-Identifier: Apache-2.0
// Rings over all servers that share no unit of a link. With as many rings as every server has
// ports, an all-gather along them takes the fewest rounds that the ports allow.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <vector>

namespace agpcs {

/// A ring visits every server once. hops[i] leads from order[i] to order[i + 1], the last one back
/// to the first.
struct FlowRing {
  std::vector<int> order;
  std::vector<FlowRoute> hops;
};

/// Returns `count` rings that can all be used in the same round. Empty if it finds none in `tries`
/// random tries (there may still be some).
///
/// A flow with `count` units through every server is split into flows with one unit each. Each of
/// those is a set of cycles. Two cycles that meet at a switch become one by exchanging their ways
/// on from there. Two cycles at both ends of a free cable between switches become one by crossing
/// over on it. If more than one is left, flow moves along cycles of the residual graph as long as
/// there are no more cycles than before. Cost of a try: near O(links) on networks with switches;
/// O(servers x links) otherwise.
std::vector<FlowRing> find_rings(const Topology& topology, int count, Rng rng, int tries);

/// Returns the all-gather in which sub-chunk i of every owner goes round ring i: servers - 1 rounds
/// of sub-chunks, with as many sub-chunks as rings.
FlowSchedule all_gather_along(const std::vector<FlowRing>& rings);

}  // namespace agpcs
