// SPDX-License-Identifier: Apache-2.0
// A cluster as it is now: figures of cluster.yaml and its profiles, changed by what a running job
// measured.
#pragma once

#include "ir/cluster.h"
#include "ir/op_table.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs {

/// What a link takes, in times of what the cluster says.
struct LinkFactor {
  double seconds_per_byte = 1;
  double latency = 1;
  friend bool operator==(const LinkFactor&, const LinkFactor&) = default;
};

/// How hardware differs from a cluster. What is not in it is as the cluster says.
struct HardwareDrift {
  std::map<DeviceId, double> devices;  ///< computes that many times as long
  std::map<LinkId, LinkFactor> links;
  friend bool operator==(const HardwareDrift&, const HardwareDrift&) = default;
};

/// First `a`, then `b`: factors multiply. Factors within 5% of 1 are 1, and left out: hardware that
/// is back to what it was is the cluster itself again.
HardwareDrift compose(HardwareDrift a, const HardwareDrift& b);

/// Calls `f(class, point)` for what was measured of the operators of a kind, which gets a profile
/// of its own for that: no other kind changes. The profile's digest is not set anew.
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

/// All that a device of `kind`, one of the cluster's, computes takes `factor` times as long: what
/// was measured, what was fitted, and the datasheet's figures.
void slow_down(Cluster& cluster, DeviceKind& kind, double factor);

/// The cluster with `drift`. A device that changed has a kind of its own, "v100-x2.5", which is the
/// old one with all that it computes, and what messages cost it, that many times as long. A link
/// that changed has the figures that follow, and no profile. Needs: a calibrated cluster, if it has
/// profiles; factors above 0. The digest of its text tells it from the cluster, without drift it is
/// the cluster. Cost: a copy of a profile for each device that changed.
Cluster drifted_cluster(Cluster cluster, const HardwareDrift& drift);

/// The cluster without those devices, and without hosts that have none left. Devices and hosts are
/// numbered anew, in the same order; links keep their numbers. Needs: a device is left.
Cluster without_devices(const Cluster& cluster, const std::vector<DeviceId>& gone);

/// Text for people, a line a change: "device b/0 computes 2.5 times as long".
std::string print_drift(const Cluster& cluster, const HardwareDrift& drift);

}  // namespace agpcs
