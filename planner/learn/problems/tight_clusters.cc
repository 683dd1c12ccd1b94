// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/tight_clusters.h"

#include "planner/learn/problems/cluster_builder.h"

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr Nic kCables[] = {{"ethernet", 1, 50},  {"ethernet", 2.5, 40}, {"ethernet", 5, 40},
                           {"ethernet", 10, 30}, {"ethernet", 25, 15},  {"ethernet", 50, 10}};

/// Returns the kinds in order for the first hosts, so that each appears, then any.
const Datasheet& next_kind(Rng& rng, const std::vector<Datasheet>& kinds, const ClusterBuilder& b) {
  const auto host = static_cast<std::size_t>(b.hosts());
  return host < kinds.size() ? kinds[host] : kinds[rng.below(kinds.size())];
}

/// Adds hosts of `least` to `most` devices, each with a NIC of its own speed.
void add_unequal_hosts(ClusterBuilder& builder, Rng& rng, const std::vector<Datasheet>& kinds,
                       int hosts, int least, int most) {
  while (builder.hosts() < hosts) {
    const Datasheet& sheet = next_kind(rng, kinds, builder);
    const int devices = some(rng, least, most);
    builder.add_host(sheet, devices, one_of(rng, kCables));
  }
}

}  // namespace

Cluster stragglers(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 4, Purpose::kTraining);
  const int hosts = some(rng, 4, 7);
  add_unequal_hosts(builder, rng, kinds, hosts, 1, 2);
  return builder.join_by_switch();
}

/// Makes racks of two hosts, each rack with an uplink of its own speed.
Cluster unequal_racks(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 3, Purpose::kTraining);
  const int racks = some(rng, 2, 3);
  for (int host = 0; host < 2 * racks; ++host) {
    const Datasheet& sheet = next_kind(rng, kinds, builder);
    const int devices = some(rng, 1, 2);
    builder.add_host(sheet, devices, kNics[some(rng, 3, 6)]);
  }
  std::vector<LinkId> out, in;
  for (int rack = 0; rack < racks; ++rack) {
    const Nic& uplink = one_of(rng, kCables);
    out.push_back(builder.add_cable(fmt::format("rack{} out", rack), uplink));
    in.push_back(builder.add_cable(fmt::format("rack{} in", rack), uplink));
  }
  return builder.join("links", [&](int from, int to) -> std::vector<LinkId> {
    if (from / 2 == to / 2) return {};
    return {out[static_cast<std::size_t>(from / 2)], in[static_cast<std::size_t>(to / 2)]};
  });
}

Cluster motley_singles(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 4, 6, Purpose::kRoom);
  const int hosts = some(rng, 6, 10);
  add_unequal_hosts(builder, rng, kinds, hosts, 1, 1);
  return builder.join_by_switch();
}

/// Makes a line. Hosts pass on what is for others; each cable has a speed of its own.
Cluster host_line(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 4, Purpose::kRoom);
  const int hosts = some(rng, 4, 6);
  for (int host = 0; host < hosts; ++host) {
    const Datasheet& sheet = next_kind(rng, kinds, builder);
    const int devices = some(rng, 1, 3);
    builder.add_host(sheet, devices, {"pcie", 100, 1});
  }
  std::vector<LinkId> up, down;  // by the cable's lower host
  for (int host = 0; host + 1 < hosts; ++host) {
    const Nic& cable = one_of(rng, kCables);
    up.push_back(builder.add_cable(fmt::format("cable{} up", host), cable));
    down.push_back(builder.add_cable(fmt::format("cable{} down", host), cable));
  }
  return builder.join("links", [&](int from, int to) {
    std::vector<LinkId> route;
    for (int at = from; at < to; ++at) route.push_back(up[static_cast<std::size_t>(at)]);
    for (int at = from; at > to; --at) route.push_back(down[static_cast<std::size_t>(at) - 1]);
    return route;
  });
}

/// Makes islands of one kind each. Every two have a bridge of their own.
Cluster bridged_islands(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 3, 4, Purpose::kRoom);
  const int islands = static_cast<int>(kinds.size());
  for (int island = 0; island < islands; ++island) {
    const int devices = some(rng, 1, 4);
    builder.add_host(kinds[static_cast<std::size_t>(island)], devices, {"pcie", 100, 1});
  }
  std::map<std::pair<int, int>, LinkId> bridges;
  for (int from = 0; from < islands; ++from) {
    for (int to = from + 1; to < islands; ++to) {
      const Nic& bridge = one_of(rng, kCables);
      bridges[{from, to}] = builder.add_cable(fmt::format("bridge {}-{}", from, to), bridge);
      bridges[{to, from}] = builder.add_cable(fmt::format("bridge {}-{}", to, from), bridge);
    }
  }
  return builder.join("links", [&](int from, int to) -> std::vector<LinkId> {
    return {bridges.at({from, to})};
  });
}

}  // namespace agpcs
