// SPDX-License-Identifier: Apache-2.0
// ClusterBuilder: builds a cluster in memory, host by host, from devices with datasheet figures.
#pragma once

#include "ir/base/rng.h"
#include "ir/cluster/cluster.h"
#include "planner/learn/problems/purpose.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

inline constexpr int kMostDevices = 32;

/// Figures of the makers' datasheets: for dense matrices, GB/s of memory, and GB/s, in one
/// direction, of the link between devices that a host with such devices usually has.
struct Datasheet {
  std::string_view name;
  std::int64_t memory_gib;
  double memory_gbs, fp32, tf32, fp16;  // TFLOPS; tf32 is 0 if it has none
  std::string_view link;
  double link_gbs;
  Purpose purpose;
};
std::span<const Datasheet> datasheets();

/// A network interface or a cable, with its Gbit/s and microseconds.
struct Nic {
  std::string_view kind;
  double gbits, micros;
};
inline constexpr Nic kNics[] = {{"ethernet", 1, 50},   {"ethernet", 10, 30}, {"ethernet", 10, 30},
                                {"ethernet", 25, 15},  {"ethernet", 25, 15}, {"ethernet", 40, 15},
                                {"ethernet", 100, 10}, {"ib", 100, 5},       {"ib", 200, 4}};

template <typename T, std::size_t n>
const T& one_of(Rng& rng, const T (&values)[n]) {
  return values[rng.below(n)];
}
inline int some(Rng& rng, int least, int most) {
  return least + static_cast<int>(rng.below(static_cast<std::uint64_t>(most - least + 1)));
}
/// Draws `least` to `most` different kinds among those for `purpose` and the purposes before it.
/// The first is for `purpose` itself.
std::vector<Datasheet> some_kinds(Rng& rng, int least, int most, Purpose purpose);

class ClusterBuilder {
 public:
  /// A device's place in a host. `slower`: its ports' bandwidth as a part of the usual one.
  struct Slot {
    Datasheet sheet;
    double slower = 1;
  };

  explicit ClusterBuilder(std::string name) { cluster_.name = std::move(name); }

  int devices() const { return cluster_.device_count(); }
  int room() const { return kMostDevices - devices(); }
  int hosts() const { return static_cast<int>(nics_.size()); }

  void add_host(const std::vector<Slot>& slots, const Nic& nic);
  /// Adds a host of equal devices.
  void add_host(const Datasheet& sheet, int devices, const Nic& nic, double slower = 1);
  /// Adds a directed link that is no host's NIC.
  LinkId add_cable(std::string name, const Nic& cable);

  /// Returns the links from one host's NIC to another's.
  using Between = std::function<std::vector<LinkId>(int from, int to)>;
  Cluster join(std::string_view topology, const Between& between);
  Cluster join_by_switch();
  /// Joins racks: each run of `hosts_each` hosts is one, and `uplink` joins it to the others.
  Cluster join_racks(int hosts_each, const Nic& uplink);

 private:
  struct Ports {
    LinkId out = -1, in = -1;
  };
  int kind_index(const Datasheet& sheet);
  LinkId add_link(std::string name, std::string_view kind, double bandwidth, double latency);
  Ports add_pair(const std::string& name, const Nic& nic);

  Cluster cluster_;
  std::vector<Ports> nics_;
};

}  // namespace agpcs
