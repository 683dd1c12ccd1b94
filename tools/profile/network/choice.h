// SPDX-License-Identifier: Apache-2.0
// Chooses the messages and all-reduces that are measured on a cluster.
#pragma once

#include "ir/cluster/cluster.h"

#include <agpcs/types.h>

#include <utility>
#include <vector>

namespace agpcs {

/// Returns ordered pairs of devices, ascending. With at most `all_up_to` devices it returns all
/// pairs. With more it goes through the pairs in order and takes a pair if it crosses a link that
/// no earlier pair crosses, or is the first of its class. A class is the kinds of both devices, and
/// kind, bandwidth and latency of each link between them.
/// Cost: O(devices^2 x links of a route).
std::vector<std::pair<DeviceId, DeviceId>> choose_paths(const Cluster& cluster, int all_up_to);

struct ChosenCollective {
  AllReduce algorithm = AllReduce::kRing;
  std::vector<DeviceId> devices;  ///< ascending
};

/// Returns the all-reduces to measure, by algorithm, then devices:
/// * Ring over all devices, over the devices of each host (with more than `all_up_to` devices: of
///   one host of each class), and over every pair if there are at most 4 devices. Each group occurs
///   once.
/// * Hierarchical over all devices, if there are several hosts and one of them has several devices.
/// * Tree over all devices, if there are more than two. Between two it sends what a ring does, only
///   later.
std::vector<ChosenCollective> choose_collectives(const Cluster& cluster, int all_up_to);

}  // namespace agpcs
