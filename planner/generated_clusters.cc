// SPDX-License-Identifier: Apache-2.0
#include "planner/generated_clusters.h"

#include "ir/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr double kTera = 1e12;
constexpr int kMostDevices = 32;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// Of the makers' datasheets: dense figures, GB/s of memory, and of the link between devices that a
/// host with such devices usually has (one direction).
struct Datasheet {
  std::string_view name;
  std::int64_t memory_gib;
  double memory_gbs, fp32, tf32, fp16;  // TFLOPS; tf32 0: it has none
  std::string_view link;
  double link_gbs;
  bool held_out;
};
constexpr Datasheet kDatasheets[] = {
    {"p100", 16, 732, 9.3, 0, 18.7, "pcie", 11, false},
    {"v100", 16, 900, 15.7, 0, 125, "nvlink", 50, false},
    {"v100-32", 32, 900, 15.7, 0, 125, "nvlink", 50, false},
    {"rtx3090", 24, 936, 35.6, 35.6, 71, "pcie", 16, false},
    {"a10", 24, 600, 31.2, 62.5, 125, "pcie", 16, false},
    {"a100", 40, 1555, 19.5, 156, 312, "nvlink", 200, false},
    {"a100-80", 80, 2039, 19.5, 156, 312, "nvlink", 200, false},
    {"t4", 16, 320, 8.1, 0, 65, "pcie", 11, true},
    {"h100", 80, 3350, 67, 495, 989, "nvlink", 300, true},
};

/// A network interface, its Gbit/s and microseconds.
struct Nic {
  std::string_view kind;
  double gbits, micros;
};
constexpr Nic kNics[] = {{"ethernet", 1, 50},   {"ethernet", 10, 30}, {"ethernet", 10, 30},
                         {"ethernet", 25, 15},  {"ethernet", 25, 15}, {"ethernet", 40, 15},
                         {"ethernet", 100, 10}, {"ib", 100, 5},       {"ib", 200, 4}};

DeviceKind kind_of(const Datasheet& sheet) {
  DeviceKind kind;
  kind.name = sheet.name;
  kind.memory_bytes = sheet.memory_gib * kGiB;
  kind.memory_bandwidth = sheet.memory_gbs * 1e9;
  kind.peak_flops = {{"fp32", sheet.fp32 * kTera}, {"fp16", sheet.fp16 * kTera}};
  if (sheet.tf32 > 0) kind.peak_flops["tf32"] = sheet.tf32 * kTera;
  return kind;
}

template <typename T, std::size_t n>
const T& one_of(Rng& rng, const T (&values)[n]) {
  return values[rng.below(n)];
}

/// Builds clusters host by host, joined in the end.
class ClusterBuilder {
 public:
  explicit ClusterBuilder(std::string name) { cluster_.name = std::move(name); }

  int devices() const { return cluster_.device_count(); }
  int room() const { return kMostDevices - devices(); }

  /// `slower`: the ports' bandwidth, of what is usual.
  void add_host(const Datasheet& sheet, int devices, const Nic& nic, double slower = 1) {
    const int host = static_cast<int>(cluster_.hosts.size());
    const std::string name = fmt::format("h{}", host);
    cluster_.hosts.push_back({name, this->devices(), devices});
    const int kind = kind_index(sheet);
    for (int i = 0; i < devices; ++i) {
      const double bandwidth = sheet.link_gbs * 1e9 * slower;
      const std::string device = fmt::format("{}/{}", name, i);
      const LinkId out = add_link(device + " out", sheet.link, bandwidth, 4e-6);
      const LinkId in = add_link(device + " in", sheet.link, bandwidth, 4e-6);
      cluster_.devices.push_back({host, i, kind, out, in});
    }
    nics_.push_back(add_pair(name + " nic", nic));
  }

  Cluster join_by_switch() { return join({}); }

  /// Each run of `hosts_each` hosts is a rack; `uplink` joins a rack to the others.
  Cluster join_racks(int hosts_each, const Nic& uplink) {
    std::vector<int> rack_of;
    for (int host = 0; host < static_cast<int>(nics_.size()); ++host) {
      rack_of.push_back(host / hosts_each);
    }
    for (int rack = 0; rack <= rack_of.back(); ++rack) {
      uplinks_.push_back(add_pair(fmt::format("rack{} uplink", rack), uplink));
    }
    return join(rack_of);
  }

 private:
  struct Ports {
    LinkId out = -1, in = -1;
  };

  int kind_index(const Datasheet& sheet) {
    std::vector<DeviceKind>& kinds = cluster_.kinds;
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const DeviceKind& kind) {
      return kind.name == sheet.name;
    });
    const auto index = static_cast<int>(found - kinds.begin());
    if (found == kinds.end()) kinds.push_back(agpcs::kind_of(sheet));
    return index;
  }

  LinkId add_link(std::string name, std::string_view kind, double bandwidth, double latency) {
    Link link;
    link.name = std::move(name);
    link.kind = kind;
    link.bandwidth = bandwidth;
    link.latency = latency;
    cluster_.links.push_back(std::move(link));
    return static_cast<LinkId>(cluster_.links.size()) - 1;
  }

  Ports add_pair(const std::string& name, const Nic& nic) {
    const double bandwidth = nic.gbits * 1e9 / 8, latency = nic.micros * 1e-6;
    const LinkId out = add_link(name + " out", nic.kind, bandwidth, latency);
    return {out, add_link(name + " in", nic.kind, bandwidth, latency)};
  }

  Cluster join(const std::vector<int>& rack_of) {
    cluster_.topology = rack_of.empty() ? "switch" : "links";
    const std::size_t hosts = cluster_.hosts.size();
    cluster_.host_routes.assign(hosts * hosts, {});
    for (std::size_t a = 0; a < hosts; ++a) {
      for (std::size_t b = 0; b < hosts; ++b) {
        if (a == b) continue;
        std::vector<LinkId>& route = cluster_.host_routes[a * hosts + b];
        route = {nics_[a].out};
        if (!rack_of.empty() && rack_of[a] != rack_of[b]) {
          route.push_back(uplinks_[static_cast<std::size_t>(rack_of[a])].out);
          route.push_back(uplinks_[static_cast<std::size_t>(rack_of[b])].in);
        }
        route.push_back(nics_[b].in);
      }
    }
    const Status status = verify_cluster(cluster_);
    AGPCS_CHECK(status.ok(), "{}", status.message());
    return std::move(cluster_);
  }

  Cluster cluster_;
  std::vector<Ports> nics_, uplinks_;
};

int some(Rng& rng, int least, int most) {
  return least + static_cast<int>(rng.below(static_cast<std::uint64_t>(most - least + 1)));
}

/// `least` to `most` different kinds, of those that training may see or of all with one that it may
/// not.
std::vector<Datasheet> some_kinds(Rng& rng, int least, int most, bool held_out) {
  std::vector<Datasheet> pool, kinds;
  for (const Datasheet& sheet : kDatasheets) {
    if (held_out || !sheet.held_out) pool.push_back(sheet);
  }
  const auto count = static_cast<std::size_t>(some(rng, least, most));
  if (held_out) {  // the last two of the table
    const std::size_t at = pool.size() - 1 - rng.below(2);
    kinds.push_back(pool[at]);
    pool.erase(pool.begin() + static_cast<std::ptrdiff_t>(at));
  }
  while (kinds.size() < count) {
    const std::size_t at = rng.below(pool.size());
    kinds.push_back(pool[at]);
    pool.erase(pool.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return kinds;
}

int devices_of_a_host(Rng& rng) {
  constexpr int kCounts[] = {1, 2, 2, 4, 4, 4, 8, 8};
  return one_of(rng, kCounts);
}

/// Hosts of `kinds`, the first of which is there at least once.
void add_hosts(ClusterBuilder& builder, Rng& rng, const std::vector<Datasheet>& kinds, int hosts) {
  const Nic usual = one_of(rng, kNics);
  const bool same_nics = rng.below(2) == 0;
  for (int host = 0; host < hosts && builder.room() > 0; ++host) {
    const Datasheet& sheet = host == 0 ? kinds.front() : kinds[rng.below(kinds.size())];
    const int devices = std::min(devices_of_a_host(rng), builder.room());
    builder.add_host(sheet, devices, same_nics ? usual : one_of(rng, kNics));
  }
  if (builder.devices() < 2) builder.add_host(kinds.back(), 1, usual);
}

Cluster single_host(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const int devices = some(rng, 2, 8);
  builder.add_host(some_kinds(rng, 1, 1, false).front(), devices, kNics[0],
                   rng.below(3) == 0 ? 0.5 : 1);
  return builder.join_by_switch();
}

Cluster even_hosts(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const Datasheet sheet = some_kinds(rng, 1, 1, false).front();
  const int hosts = some(rng, 2, 8);
  const int devices = std::min(devices_of_a_host(rng), kMostDevices / hosts);
  const Nic nic = one_of(rng, kNics);
  for (int host = 0; host < hosts; ++host) builder.add_host(sheet, devices, nic);
  return builder.join_by_switch();
}

Cluster mixed(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 1, 4, false);
  add_hosts(builder, rng, kinds, some(rng, 1, 8));
  return builder.join_by_switch();
}

/// A host with many devices, and hosts with one or two that are far away.
Cluster uneven(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 3, false);
  builder.add_host(kinds.front(), some(rng, 4, 8), kNics[some(rng, 3, 8)]);
  for (int hosts = some(rng, 1, 5); hosts > 0; --hosts) {
    builder.add_host(kinds[rng.below(kinds.size())], some(rng, 1, 2), kNics[some(rng, 0, 2)]);
  }
  return builder.join_by_switch();
}

Cluster new_and_old(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 4, true);
  add_hosts(builder, rng, kinds, some(rng, 2, 8));
  return builder.join_by_switch();
}

Cluster racks(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 3, true);
  const int hosts = some(rng, 4, 8);
  for (int host = 0; host < hosts; ++host) {
    const Datasheet& sheet = host == 0 ? kinds.front() : kinds[rng.below(kinds.size())];
    builder.add_host(sheet, some(rng, 1, kMostDevices / hosts), kNics[some(rng, 3, 8)]);
  }
  return builder.join_racks(some(rng, 2, 3), kNics[some(rng, 1, 5)]);
}

constexpr ClusterShape kShapes[] = {
    {"single_host", "2 to 8 devices of one kind", false, single_host},
    {"even_hosts", "equal hosts behind a switch", false, even_hosts},
    {"mixed", "1 to 8 hosts of up to 4 kinds behind a switch", false, mixed},
    {"uneven", "a large host, small ones behind slow links", false, uneven},
    {"new_and_old", "hosts of up to 4 kinds, T4 or H100 among them", true, new_and_old},
    {"racks", "racks with slow uplinks, T4 or H100 among them", true, racks},
};

}  // namespace

std::span<const ClusterShape> cluster_shapes() { return kShapes; }

const ClusterShape* find_cluster_shape(std::string_view name) {
  for (const ClusterShape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

bool is_held_out_device(std::string_view kind) {
  return std::any_of(std::begin(kDatasheets), std::end(kDatasheets),
                     [&](const Datasheet& sheet) { return sheet.name == kind && sheet.held_out; });
}

}  // namespace agpcs
