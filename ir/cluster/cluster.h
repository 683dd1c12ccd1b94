// SPDX-License-Identifier: Apache-2.0
// Cluster: devices, directed links, and the route between any two devices.
#pragma once

#include "ir/cluster/profile.h"

#include <agpcs/status.h>
#include <agpcs/training.h>

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
  int profile =
      -1;  ///< index into Cluster::profiles; -1: no profile, the figures are those of the file
  std::string entry;  ///< the device kind, or the link's name, in that profile
  bool given() const { return profile >= 0; }
};

/// The fitted seconds of one pass of an operator: overhead + FLOPs x per_flop + bytes x per_byte.
struct PassFit {
  bool fitted = false;  ///< false: the class has too few measurements, and this is the fit of all
                        ///< classes with the same bound (arithmetic or memory)
  double overhead = 0, per_flop = 0, per_byte = 0;
};

/// The fitted seconds of an optimizer's step: tensors x per_tensor + elements x per_element.
struct UpdateFit {
  std::string optimizer;  ///< `optimizer_name`
  double per_tensor = 0, per_element = 0;
};

/// The fitted seconds of a pass of operators of one group (cost_model/kernel/terms.h): terms x
/// coefficients, times a factor for the number of samples, because libraries choose other
/// algorithms for other numbers.
struct CorrectionFit {
  std::vector<double> coefficients;   ///< by term; empty: the pass was not measured
  std::vector<std::int64_t> samples;  ///< ascending
  std::vector<double> factors;        ///< at these numbers of samples; none: 1
};
struct Correction {
  std::string group;  ///< "product", "Conv 1x1", "Relu"
  CorrectionFit forward, backward;
};

/// The fits of `calibrate` to the profile of a device kind.
struct KindFit {
  struct Class {
    PassFit forward, backward;
  };
  std::array<Class, kOpClassCount> classes;  ///< by OpClass
  std::vector<Correction> corrections;       ///< by group; of a quick profile
  std::vector<UpdateFit> updates;            ///< by optimizer; empty: no optimizer was measured
  double begin_per_element = 0;              ///< seconds
};

/// Orders precisions by name, as digests and messages have them.
struct ByName {
  bool operator()(Precision a, Precision b) const { return name_of(a) < name_of(b); }
};

/// What computes on a device. The kernel model uses it (cost_model/kernel/device.h).
struct Processors {
  int count = 0;           ///< 0: not known, and all other figures are absent
  double board_power = 0;  ///< W; 0: not known
  std::string process;     ///< "TSMC 12FFN"
  std::string memory_type;
};

/// The link between a device and the memory of its host.
struct HostLink {
  std::string kind;
  double bandwidth = 0;  ///< bytes/s of one device in each direction; 0: there is no such link
  double latency = 0;    ///< seconds of a copy beyond its bytes
  bool given() const { return bandwidth > 0; }
};

/// A kind of device. Its figures are the datasheet's, or measured ones where `profile` is given.
struct DeviceKind {
  std::string name;
  std::int64_t memory_bytes = 0;
  double memory_bandwidth = 0;  ///< bytes/s
  std::map<Precision, double, ByName> peak_flops;
  double launch_overhead = 5e-6;  ///< seconds per operator
  /// The fraction of the peak that operators of a class reach, by class name (`name_of(OpClass)`).
  /// A class that is absent has the default.
  std::map<std::string, double> efficiency;
  Processors processors;

  ProfileRef profile;
  KindFit fit;                  ///< set by `calibrate`; meaningless without a profile
  double message_overhead = 0;  ///< seconds that the runtime adds to every message
  double message_compute = 0;   ///< seconds of computing that each message costs either end
  Overlap overlap;
  HostLink host_link;
};

struct Device {
  int host = 0;
  int index = 0;             ///< within the host
  int kind = 0;              ///< index into Cluster::kinds
  LinkId out = -1, in = -1;  ///< the device's ports on the host's interconnect
};

struct Host {
  std::string name;
  DeviceId first_device = 0;
  int device_count = 0;
  /// Memory that its devices may keep state in, in bytes; 0: none.
  std::int64_t memory_bytes = 0;
};

/// How NCCL moves the bytes of a collective: in words of 8 bytes with a flag each, in lines of 128
/// bytes with a flag each, or in plain chunks behind a barrier.
enum class Protocol : std::uint8_t { kLL, kLL128, kSimple };
inline constexpr int kProtocolCount = 3;

/// The costs of NCCL's collectives on a kind of network (docs/reference/kinds.md#protocols).
struct NetworkProtocols {
  struct Figures {
    double start = 0;    ///< seconds before the first message
    double latency = 0;  ///< of a message, in latencies of the link
    double rate = 0;     ///< in bandwidths of the link, at most 1; 0: NCCL does not use it here
  };
  std::string name;
  std::array<Figures, kProtocolCount> of;  ///< by Protocol; `kSimple` has latency 1 and rate 1
  double step = 0;                         ///< seconds added to each step of an algorithm
  /// The rate of `kLL128` in Simple's that NCCL expects when it chooses; 0: it has no `kLL128`.
  double expected = 0;
};

/// A directed link. All transfers whose routes contain it share its bandwidth.
struct Link {
  std::string name;      ///< "volta/0 out", "volta nic out", "a -> b"
  std::string kind;      ///< nvlink, pcie, ib, tcp, ethernet, ...
  double bandwidth = 0;  ///< bytes/s
  double latency = 0;    ///< seconds
  ProfileRef profile;
  int protocols = -1;  ///< index into Cluster::protocols; -1: latency and bandwidth are all
};

/// The costs of an all-reduce algorithm beyond its messages.
struct CollectiveFit {
  double step_overhead = 0;  ///< seconds added to each step of the algorithm
  double stretch = 1;  ///< how many times longer its bytes take than the links' bandwidths say
};

struct Cluster {
  std::string name;
  std::vector<DeviceKind> kinds;
  std::vector<Host> hosts;
  std::vector<Device> devices;
  std::vector<Link> links;
  std::string
      topology;  ///< "switch", "links" or the specification it was generated from: "bcube:4,1"

  std::vector<NetworkProtocols> protocols;  ///< those that links refer to, each once

  std::vector<Profile> profiles;   ///< the profiles that kinds, links and algorithms refer to
  ProfileRef collectives_profile;  ///< has no entry: it means all collectives of the profile
  std::array<CollectiveFit, kAllReduceCount> collectives;  ///< by AllReduce

  /// host_routes[a * hosts + b] has the links from host a to host b in order, NICs included; it is
  /// empty for a == b.
  std::vector<std::vector<LinkId>> host_routes;

  int device_count() const { return static_cast<int>(devices.size()); }
  /// Returns the links from one device to another in order: out port, host route if the hosts
  /// differ, in port. The route from a device to itself is empty. Cost: O(length).
  std::vector<LinkId> route(DeviceId from, DeviceId to) const;
  /// Appends the route to `links`.
  void append_route(DeviceId from, DeviceId to, std::vector<LinkId>& links) const;
  const DeviceKind& kind_of(DeviceId device) const;
  std::string device_name(DeviceId device) const;     ///< "volta/0"
  DeviceId find_device(std::string_view name) const;  ///< kNone (-1) when absent
};

/// Prints all figures, kinds and links, for the digest and for `verify`. Where figures were
/// measured, the text names the profile's digest and the entry instead of the figures that
/// `calibrate` sets, so that `calibrate` does not change the text. It always contains a kind's
/// datasheet figures.
std::string print_cluster(const Cluster& cluster);
Status verify_cluster(const Cluster& cluster);

}  // namespace agpcs
