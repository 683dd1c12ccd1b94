// SPDX-License-Identifier: Apache-2.0
// A cluster's devices and links as a topology on which all-reduces are scheduled.
#pragma once

#include "ir/cluster.h"
#include "ir/topology.h"

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

struct ClusterTopology {
  Topology topology;          ///< has routes: those of the cluster
  std::vector<LinkId> links;  ///< by the topology's link: the cluster's
};

/// The topology of `devices` (two or more, no duplicates), which are its servers in this order.
/// Links that no route between them uses are left out; the others keep their order. Nodes come from
/// the routes: links that follow each other meet in one. So do, where routes leave it open, the two
/// ports of a device and what is on both sides of a name: links "x -> y" and NICs "x nic out", "x
/// nic in" (ir/cluster.h). Servers have the names of their devices, nodes inside a host the host's,
/// others those that links have for them; a NIC is plugged into "x:nic" or, with others, "switch".
/// Capacities are `units_of` the bandwidths.
/// Cost: O(devices^2 x links of a route).
ClusterTopology topology_of(const Cluster& cluster, std::span<const DeviceId> devices);

/// What `schedule_seconds` (flow_time.h) takes: the cluster's links by the topology's numbers.
std::vector<Link> links_of(const Cluster& cluster, const ClusterTopology& topology);

/// Bandwidths in whole units a round, rounded down. The slowest has m units, m the one of 1 to 8
/// (ties: the lowest) for which the largest part of a bandwidth that rounding loses is least, plus
/// (m - 1) / (servers - 1): with more units a round, more of them are left over in the last rounds.
/// Needs: bandwidths above 0, two servers.
std::vector<std::int64_t> units_of(std::span<const double> bandwidths, int servers);

}  // namespace agpcs
