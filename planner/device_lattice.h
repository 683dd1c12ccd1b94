// SPDX-License-Identifier: Apache-2.0
// Device lattice: the ways in which consecutive stages of a pipeline may be given devices.
#pragma once

#include "planner/device_groups.h"
#include "planner/linear_program.h"

#include <optional>
#include <vector>

namespace agpcs {

/// Where tensors enter or leave a group. Groups on several hosts share a place with all others on
/// as many: its devices are those of the first such group, for all links between hosts count as
/// alike there.
struct LinearPlace {
  DeviceId device = 0;
  DeviceId elsewhere = 0;  ///< of the group, on another host; `device` where all are on one
  int hosts = 1;           ///< of the group: lanes side by side
};

/// States of what is handed out, and the groups between them, as `solve_linear` takes them; entry
/// and exit are places.
struct DeviceLattice {
  int states = 0;
  std::vector<LinearGroup> groups;
  std::vector<LinearPlace> places;
  /// By group: units of each class. Classes are what units are interchangeable in; in a lattice of
  /// runs each unit is a class of its own.
  std::vector<std::vector<int>> taken;
  std::vector<std::vector<int>> taken_at;  ///< by state: units of each class that are handed out
  std::vector<DeviceGroups> units;         ///< by class

  /// The devices of consecutive stages: units of a class are given out in order. Each ascending.
  DeviceGroups devices_of(const std::vector<LinearStage>& stages) const;
  /// The devices of a group alone; ascending.
  std::vector<DeviceId> devices_of(int group) const;
};

/// Every way to hand out numbers of devices of each class to stages in order, mixed groups
/// included. Classes are devices of one kind on one host; or, when that makes too many groups, of
/// one kind on hosts that are alike. Devices are handed out in units: single ones when
/// `most_groups` allows, else runs of 2, 4, ... of a host, hosts, pairs of hosts, ... Nothing where
/// even that is too much. `exact` is set when units are single devices of single hosts.
std::optional<DeviceLattice> lattice_of_classes(const Cluster& cluster, std::size_t most_groups,
                                                bool& exact);

/// Contiguous runs of `order`, which is divided into at most `most_units` units.
DeviceLattice lattice_of_runs(const Cluster& cluster, const std::vector<DeviceId>& order,
                              int most_units);

/// Orders of devices worth cutting into runs: as in the cluster and in reverse, by memory bandwidth
/// up and down, by memory up and down, and hosts taking turns. Orders that look alike appear once.
std::vector<std::vector<DeviceId>> device_orders(const Cluster& cluster);

}  // namespace agpcs
