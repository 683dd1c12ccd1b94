// SPDX-License-Identifier: Apache-2.0
// A cluster as it is now: the figures of cluster.yaml and its profiles, changed by what a running
// job measured.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/op_table.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs {

/// The times of a link as multiples of what the cluster says.
struct LinkFactor {
  double seconds_per_byte = 1;
  double latency = 1;
  friend bool operator==(const LinkFactor&, const LinkFactor&) = default;
};

/// The difference of hardware from a cluster. A device or link that it does not contain is as the
/// cluster says.
struct HardwareDrift {
  std::map<DeviceId, double> devices;  ///< factor of the device's computing time
  std::map<LinkId, LinkFactor> links;
  friend bool operator==(const HardwareDrift&, const HardwareDrift&) = default;
};

/// Applies first `a`, then `b`: factors multiply. Factors within 5% of 1 become 1 and are left out,
/// so that hardware that has recovered gives the cluster itself again.
HardwareDrift compose(HardwareDrift a, const HardwareDrift& b);

/// Calls `f(class, point)` for each measured point of a kind's operators. First it gives the kind a
/// profile of its own, so that no other kind changes. It does not update the profile's digest.
template <typename F>
void change_measured(Cluster& cluster, DeviceKind& kind, F f) {
  if (!kind.profile.given()) return;
  const auto own = static_cast<int>(cluster.profiles.size());
  cluster.profiles.push_back(
      Profile(cluster.profiles[static_cast<std::size_t>(kind.profile.profile)]));
  kind.profile.profile = own;
  for (DeviceProfile& device : cluster.profiles.back().devices) {
    if (device.name != kind.profile.entry) continue;
    for (MeasuredOperator& op : device.operators) {
      for (MeasuredOperator::Point& point : op.points) f(op.op_class, point);
    }
  }
}

/// Makes everything that a device of `kind`, one of the cluster's, computes take `factor` times as
/// long: measurements, fits, and the datasheet's figures.
void slow_down(Cluster& cluster, DeviceKind& kind, double factor);

/// Returns the cluster with `drift`. A device that changed gets a kind of its own, "v100-x2.5": the
/// old kind with its computing times, and what messages cost it, multiplied by the factor. A link
/// that changed gets the resulting figures and no profile. Needs: a calibrated cluster, if it has
/// profiles; factors above 0. The text of the result has another digest than the cluster; without
/// drift, the result is the cluster. Cost: a copy of a profile for each device that changed.
Cluster drifted_cluster(Cluster cluster, const HardwareDrift& drift);

/// Returns the cluster without the devices `gone`, and without hosts that have no devices left.
/// Devices and hosts are renumbered in the same order; links keep their numbers. Needs: at least
/// one device is left.
Cluster without_devices(const Cluster& cluster, const std::vector<DeviceId>& gone);

/// Prints a text for people, one line for each change: "device b/0 computes 2.5 times as long".
std::string print_drift(const Cluster& cluster, const HardwareDrift& drift);

}  // namespace agpcs
