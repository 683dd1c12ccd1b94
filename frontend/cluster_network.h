// SPDX-License-Identifier: Apache-2.0
// The `network:` section of cluster.yaml: links between hosts, and the route from host to host.
#pragma once

#include "frontend/cluster_profile.h"
#include "ir/cluster.h"
#include "ir/diagnostics.h"

#include <yaml-cpp/yaml.h>

#include <vector>

namespace agpcs {

/// A host's NIC, as links; kNone (-1) where the host has none.
struct NicPorts {
  LinkId out = -1, in = -1;
};

/// Adds the network's links to `cluster` and sets its topology and host routes. `nics` is parallel
/// to the hosts. `node` is null where the file has no such section. The section's own `profile` is
/// read before, with the cluster's (ClusterProfiles::read_network).
///
/// Topology `switch`: every route is the one NIC out, the other NIC in. Topology `links`: NIC out
/// (if any), the path with the fewest links, NIC in (if any); among equally short paths the one
/// whose first differing node comes first, hosts in file order before switches. Hosts forward. The
/// generated topologies (generated_network.h) are routed like `links`.
void read_network(const YAML::Node& node, const std::vector<NicPorts>& nics,
                  ClusterProfiles& profiles, Cluster& cluster, Diagnostics& diagnostics);

}  // namespace agpcs
