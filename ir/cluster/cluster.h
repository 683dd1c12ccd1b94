// SPDX-License-Identifier: Apache-2.0
// Cluster: devices, directed links, and the route between any two devices.
#pragma once

#include "ir/profile.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

using DeviceId = int;  ///< index into Cluster::devices: hosts in file order, then index in the host
using LinkId = int;

/// The measurements that figures come from: an entry of one of the cluster's profiles.
struct ProfileRef {
  int profile = -1;   ///< index into Cluster::profiles; -1: none, the figures are as they are given
  std::string entry;  ///< the device kind in it; a link's name in it
  bool given() const { return profile >= 0; }
};

/// Seconds of one pass of an operator, fitted: overhead + FLOPs x per_flop + bytes x per_byte.
struct PassFit {
  bool fitted = false;  ///< false: too little was measured of the class, so that this is the fit of
                        ///< all classes that are bound alike, by arithmetic or by memory
  double overhead = 0, per_flop = 0, per_byte = 0;
};

/// Seconds of an optimizer's step, fitted: tensors x per_tensor + elements x per_element.
struct UpdateFit {
  std::string optimizer;  ///< `optimizer_name`
  double per_tensor = 0, per_element = 0;
};

/// What `calibrate` fitted to a kind's profile.
struct KindFit {
  struct Class {
    PassFit forward, backward;
  };
  std::array<Class, kOpClassCount> classes;  ///< by OpClass
  std::vector<UpdateFit> updates;            ///< by optimizer; empty: none was measured
  double begin_per_element = 0;              ///< seconds
};

/// A kind of device: datasheet figures, or measured ones where `profile` is given.
struct DeviceKind {
  std::string name;
  std::int64_t memory_bytes = 0;
  double memory_bandwidth = 0;               ///< bytes/s
  std::map<std::string, double> peak_flops;  ///< by precision: "fp32", "tf32", "fp16", "bf16"
  double launch_overhead = 5e-6;             ///< seconds per operator
  /// Fraction of peak reached by operator class name (`name_of(OpClass)`); absent: the default.
  std::map<std::string, double> efficiency;

  ProfileRef profile;
  KindFit fit;                  ///< set by `calibrate`; meaningless without a profile
  double message_overhead = 0;  ///< seconds that the runtime adds to every message
  MeasuredOverlap overlap;
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
  ProfileRef profile;
};

/// What an all-reduce algorithm takes beyond its messages.
struct CollectiveFit {
  double step_overhead = 0;  ///< seconds added to each of its steps
  double stretch = 1;        ///< its bytes take that many times what the links' bandwidth says
};

struct Cluster {
  std::string name;
  std::vector<DeviceKind> kinds;
  std::vector<Host> hosts;
  std::vector<Device> devices;
  std::vector<Link> links;
  std::string topology;  ///< "switch", "links" or what was generated: "bcube:4,1"

  std::vector<Profile> profiles;   ///< that kinds, links and algorithms refer to
  ProfileRef collectives_profile;  ///< without an entry: all of its collectives
  std::array<CollectiveFit, kAllReduceCount> collectives;  ///< by AllReduce

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

/// Text with all figures, kinds and links, for the digest and `verify`. What was measured is named
/// by the profile's digest and the entry in place of the figures that `calibrate` sets, so that the
/// text before and after it is the same; a kind's datasheet figures are always in it.
std::string print_cluster(const Cluster& cluster);
Status verify_cluster(const Cluster& cluster);

}  // namespace agpcs
