// SPDX-License-Identifier: Apache-2.0
// Which messages and all-reduces are measured on a cluster.
#pragma once

#include "ir/cluster.h"

#include <agpcs/types.h>

#include <utility>
#include <vector>

namespace agpcs {

/// Ordered pairs of devices, ascending. All of them with at most `all_up_to` devices; else those,
/// in order, that cross a link which none before them crosses, or are the first of their class:
/// kinds of both devices, and kind, bandwidth and latency of each link between them.
/// Cost: O(devices^2 x links of a route).
std::vector<std::pair<DeviceId, DeviceId>> choose_paths(const Cluster& cluster, int all_up_to);

struct ChosenCollective {
  AllReduce algorithm = AllReduce::kRing;
  std::vector<DeviceId> devices;  ///< ascending
};

/// By algorithm, then devices. Ring over all devices, over each host's (with more than `all_up_to`
/// devices: one host of each class), and over every pair if there are at most 4 devices; each group
/// once. Hierarchical over all devices, where there are several hosts and one has several devices.
/// Tree over all devices, where there are more than two: between two it sends what a ring does,
/// later.
std::vector<ChosenCollective> choose_collectives(const Cluster& cluster, int all_up_to);

}  // namespace agpcs
