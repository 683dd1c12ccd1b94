// SPDX-License-Identifier: Apache-2.0
// Device groups: ways to divide a cluster's devices over the stages of a pipeline.
#pragma once

#include "ir/cluster.h"

#include <string>
#include <vector>

namespace agpcs {

/// Disjoint groups of devices, each ascending.
using DeviceGroups = std::vector<std::vector<DeviceId>>;

/// One group per host; one per kind; each host's devices cut into 2, 4, ... equal runs, down to one
/// device a group; and, where hosts have equally many devices, group i = the i-th run of every
/// host, so that a pipeline stays inside hosts and only gradients travel between them. Groupings of
/// fewer than two groups are left out, equal ones appear once. In this order.
std::vector<DeviceGroups> groupings(const Cluster& cluster);

/// Sets of devices worth trying for pure data parallelism: all; those of each kind; kinds from the
/// most memory bandwidth down, joined one by one; each host, hosts that are alike once; the first
/// device of each kind alone; hosts from the fastest network down, joined one by one (by doubling,
/// and where hosts become slower, when they are many), and hosts from the most memory bandwidth
/// down; the first 2, 4, ... devices of hosts. Each once, in this order, devices ascending.
std::vector<std::vector<DeviceId>> device_sets(const Cluster& cluster);

/// Classes of hosts that are alike: devices, interconnect, network. By host, numbered in order of
/// appearance.
std::vector<int> host_classes(const Cluster& cluster);

/// The most bytes/s between this host and another; 0 when there is none.
double network_speed(const Cluster& cluster, int host);

}  // namespace agpcs
