// SPDX-License-Identifier: Apache-2.0
// Makes a topology, on which all-reduces are scheduled, from a cluster's devices and links.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

struct ClusterTopology {
  Topology topology;          ///< has the cluster's routes
  std::vector<LinkId> links;  ///< by link of the topology: the cluster's link
};

/// Returns the topology of `devices` (two or more, no duplicates), which are its servers in this
/// order. Links that no route between them uses are left out; the others keep their order.
/// Capacities are `units_of` the bandwidths.
///
/// Nodes follow from the routes: successive links of a route meet in one node. Where routes leave
/// it open, the two ports of a device also meet in one node, and so do links that name the same
/// node: links "x -> y" and NICs "x nic out", "x nic in" (ir/cluster/cluster.h).
///
/// Servers have the names of their devices, nodes inside a host the host's name, and others the
/// name that links give them. A node that only NICs name is called "x:nic", or "switch" if several
/// NICs meet there. Cost: O(devices^2 x links of a route).
ClusterTopology topology_of(const Cluster& cluster, std::span<const DeviceId> devices);

/// Returns the cluster's links by the topology's numbers, as `schedule_seconds`
/// (cost_model/flows/time.h) takes them.
std::vector<Link> links_of(const Cluster& cluster, const ClusterTopology& topology);

/// Converts bandwidths to whole units a round, rounded down. The slowest has m units, with m from 1
/// to 8 (ties: the lowest) chosen to minimize the largest part of a bandwidth that rounding loses,
/// plus (m - 1) / (servers - 1). The second term counts that with more units a round, more of them
/// stay unused in the last rounds. Needs: bandwidths above 0, two servers or more.
std::vector<std::int64_t> units_of(std::span<const double> bandwidths, int servers);

}  // namespace agpcs
