// SPDX-License-Identifier: Apache-2.0
// Latencies and bandwidths that no message beats.
#pragma once

#include "ir/cluster/cluster.h"

#include <cstddef>
#include <vector>

namespace agpcs {

struct Wires {
  double latency = 0;    ///< seconds from one device to another
  double bandwidth = 0;  ///< bytes/s that leave or enter one of two partners, the slower one
};

/// What all links that leave a host, or enter it, carry together, bytes/s.
struct HostNetwork {
  double out = 0, in = 0;
  double slower() const { return out < in ? out : in; }
};

/// By host. Cost: O(hosts^2).
std::vector<HostNetwork> networks_of_hosts(const Cluster& cluster);

/// Between the devices of a host.
Wires wires_inside(const Cluster& cluster, const Host& host);

/// Between hosts, once for each bandwidth that the slowest of two or more hosts may have, fastest
/// first. Needs: `networks` of the cluster. Cost: O(hosts^2).
std::vector<Wires> wires_between_hosts(const Cluster& cluster,
                                       const std::vector<HostNetwork>& networks);

/// Returns the least latency between two devices; infinite if there is only one. Cost: O(hosts^2).
double least_latency(const Cluster& cluster);

}  // namespace agpcs
