// SPDX-License-Identifier: Apache-2.0
// Device lattice: the ways to give devices to the consecutive stages of a pipeline.
#pragma once

#include "planner/seed/chain_partition.h"
#include "planner/seed/device_groups.h"

#include <optional>
#include <vector>

namespace agpcs {

/// Where tensors enter or leave a group. All groups on the same number of several hosts share one
/// place, because all links between hosts count as alike there. Its devices are those of the first
/// such group.
struct LinearPlace {
  DeviceId device = 0;
  DeviceId elsewhere = 0;  ///< a device of the group on another host; `device` if all are on one
                           ///< host
  int hosts = 1;           ///< number of hosts of the group: lanes side by side
};

/// The states of what is handed out, and the groups between them, as `partition_chain` takes them.
/// Entries and exits are places.
struct DeviceLattice {
  int states = 0;
  std::vector<ChainGroup> groups;
  std::vector<LinearPlace> places;
  /// By group: how many units of each class it takes. Units of a class are interchangeable. In a
  /// lattice of runs each unit is a class of its own.
  std::vector<std::vector<int>> taken;
  std::vector<std::vector<int>> taken_at;  ///< by state: units of each class that are handed out
  std::vector<DeviceGroups> units;         ///< by class

  /// Returns the devices of consecutive stages, each ascending. Units of a class are given out in
  /// order.
  DeviceGroups devices_of(const std::vector<ChainStage>& stages) const;
  /// Returns the devices of a group alone, ascending.
  std::vector<DeviceId> devices_of(int group) const;
};

/// Returns every way to hand out numbers of devices of each class to stages in order, mixed groups
/// included. A class is the devices of one kind on one host or, if that makes too many groups, of
/// one kind on hosts that are alike. Devices are handed out in units: single ones if `most_groups`
/// allows, else runs of 2, 4, ... of a host, hosts, pairs of hosts, ... Returns nothing if even
/// that is too much. Sets `exact` if units are single devices of single hosts.
std::optional<DeviceLattice> lattice_of_classes(const Cluster& cluster, std::size_t most_groups,
                                                bool& exact);

/// Returns the lattice of contiguous runs of `order`, which is divided into at most `most_units`
/// units.
DeviceLattice lattice_of_runs(const Cluster& cluster, const std::vector<DeviceId>& order,
                              int most_units);

/// Returns orders of devices worth cutting into runs: as in the cluster and in reverse, by memory
/// bandwidth up and down, by memory up and down, and with hosts taking turns. Orders that look
/// alike appear once.
std::vector<std::vector<DeviceId>> device_orders(const Cluster& cluster);

}  // namespace agpcs
