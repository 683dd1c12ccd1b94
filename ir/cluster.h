// SPDX-License-Identifier: Apache-2.0
// Cluster: devices, directed links, and the route between any two devices.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

using DeviceId = int;  ///< index into Cluster::devices: hosts in file order, then index in the host
using LinkId = int;

/// A kind of device, datasheet figures.
struct DeviceKind {
  std::string name;
  std::int64_t memory_bytes = 0;
  double memory_bandwidth = 0;               ///< bytes/s
  std::map<std::string, double> peak_flops;  ///< by precision: "fp32", "tf32", "fp16", "bf16"
  double launch_overhead = 5e-6;             ///< seconds per operator
  /// Fraction of peak reached by operator class name (`name_of(OpClass)`); absent: the default.
  std::map<std::string, double> efficiency;
};

struct Device {
  int host = 0;
  int index = 0;             ///< within the host
  int kind = 0;              ///< index into Cluster::kinds
  LinkId out = -1, in = -1;  ///< its ports on the host's interconnect
};

struct Host {
  std::string name;
  DeviceId first_device = 0;
  int device_count = 0;
};

/// A directed link: every transfer whose route has it shares its bandwidth.
struct Link {
  std::string name;      ///< "volta/0 out", "volta nic out", "a -> b"
  std::string kind;      ///< nvlink, pcie, ib, tcp, ethernet, ...
  double bandwidth = 0;  ///< bytes/s
  double latency = 0;    ///< seconds
};

struct Cluster {
  std::string name;
  std::vector<DeviceKind> kinds;
  std::vector<Host> hosts;
  std::vector<Device> devices;
  std::vector<Link> links;
  std::string topology;  ///< "switch" or "links"

  /// host_routes[a * hosts + b]: links from host a to host b in order (NICs included); empty for a
  /// == b.
  std::vector<std::vector<LinkId>> host_routes;

  int device_count() const { return static_cast<int>(devices.size()); }
  /// Links from one device to another in order: out port, host route if hosts differ, in port.
  /// Empty for from == to. Cost: O(length).
  std::vector<LinkId> route(DeviceId from, DeviceId to) const;
  const DeviceKind& kind_of(DeviceId device) const;
  std::string device_name(DeviceId device) const;     ///< "volta/0"
  DeviceId find_device(std::string_view name) const;  ///< kNone (-1) when absent
};

/// Text with all figures, kinds and links, for the digest and `verify`.
std::string print_cluster(const Cluster& cluster);
Status verify_cluster(const Cluster& cluster);

}  // namespace agpcs
