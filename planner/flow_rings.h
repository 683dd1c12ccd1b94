// SPDX-License-Identifier: Apache-2.0
// Rings over all servers that share no unit of a link: where there are as many as every server has
// ports, an all-gather along them takes the fewest rounds that the ports allow.
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/rng.h"
#include "ir/topology.h"

#include <vector>

namespace agpcs {

/// Every server once. hops[i] leads from order[i] to order[i + 1], the last one back to the first.
struct FlowRing {
  std::vector<int> order;
  std::vector<FlowRoute> hops;
};

/// `count` rings that can all be used in the same round. Empty where none were found in `tries`
/// random tries (there may be some all the same).
///
/// A flow with `count` units through every server is split into flows with one unit each; those are
/// sets of cycles. Two cycles that meet at a switch become one by exchanging their ways on from
/// there, and two that a free cable between switches joins by going over to each other on it. Where
/// more than one is left, flow moves along cycles of the residual graph as long as that makes them
/// no more. Cost of a try: near O(links) on networks with switches; O(servers x links) otherwise.
std::vector<FlowRing> find_rings(const Topology& topology, int count, Rng rng, int tries);

/// The all-gather in which sub-chunk i of every owner goes round ring i: servers - 1 rounds of
/// sub-chunks, as many sub-chunks as rings.
FlowSchedule all_gather_along(const std::vector<FlowRing>& rings);

}  // namespace agpcs
