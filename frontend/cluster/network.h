// SPDX-License-Identifier: Apache-2.0
// Reads the `network:` section of cluster.yaml: links between hosts, and the route from each host
// to each other host.
#pragma once

#include "frontend/cluster/profile.h"
#include "ir/base/diagnostics.h"
#include "ir/cluster/cluster.h"

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

namespace agpcs {

/// A host's NIC as a pair of links; both are kNone (-1) if the host has no NIC.
struct NicPorts {
  LinkId out = -1, in = -1;
  SourceRange host;  ///< the host in the file
};

/// Sets the link's kind. If the catalog has a network of that name, the link takes its figures.
void take_network(const std::string& kind, Link& link);

/// Adds the network's links to `cluster` and sets its topology and host routes. `nics` is parallel
/// to the hosts. `node` is null if the file has no such section. The caller reads the section's own
/// `profile` earlier, together with the cluster's (ClusterProfiles::read_network).
///
/// Topology `switch`: every route is the first host's NIC out, then the second host's NIC in.
/// Topology `links`: a route is the NIC out (if any), the path with the fewest links, and the NIC
/// in (if any). Among equally short paths, the path wins whose first differing node comes first;
/// hosts in file order come before switches. Hosts forward traffic. The generated topologies
/// (generated_network.h) are routed like `links`.
void read_network(const YAML::Node& node, const std::vector<NicPorts>& nics,
                  ClusterProfiles& profiles, Cluster& cluster, Diagnostics& diagnostics);

}  // namespace agpcs
