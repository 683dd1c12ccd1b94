// SPDX-License-Identifier: Apache-2.0
// Device groups: ways to divide a cluster's devices over the stages of a pipeline.
#pragma once

#include "ir/cluster/cluster.h"

#include <string>
#include <vector>

namespace agpcs {

/// Disjoint groups of devices, each ascending.
using DeviceGroups = std::vector<std::vector<DeviceId>>;

/// Returns ways to divide the devices, in this order: one group per host; one per kind; each host's
/// devices cut into 2, 4, ... equal runs, down to one device a group; and, if hosts have equally
/// many devices, group i = the i-th run of every host, so that a pipeline stays inside hosts and
/// only gradients travel between them. Groupings of fewer than two groups are left out, and equal
/// ones appear once.
std::vector<DeviceGroups> groupings(const Cluster& cluster);

/// Returns sets of devices worth trying for pure data parallelism, in this order: all; those of
/// each kind; kinds from the most memory bandwidth down, joined one by one; each host, hosts that
/// are alike once; the first device of each kind alone; hosts from the fastest network down, joined
/// one by one (if they are many, by doubling, and where hosts become slower), and hosts from the
/// most memory bandwidth down; the first 2, 4, ... devices of hosts. Each set appears once, its
/// devices ascending.
std::vector<std::vector<DeviceId>> device_sets(const Cluster& cluster);

/// Returns the class of each host, numbered in order of appearance. Hosts of one class are alike in
/// devices, interconnect and network.
std::vector<int> host_classes(const Cluster& cluster);

/// Returns the most bytes/s between this host and another, or 0 if there is no other.
double network_speed(const Cluster& cluster, int host);

}  // namespace agpcs
