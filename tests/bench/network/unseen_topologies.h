// SPDX-License-Identifier: Apache-2.0
// Topologies that the policies of all-reduces are measured on. Training draws BCube, DCell and
// Jellyfish of 6 to 16 servers (`draw_training_topology`); here are seven other families, and those
// three 1.5 to 6 times larger, of every third with failed cables, of every third with links of 1 to
// 4 units. The list is fixed; its seed was drawn when networks, features and rules were settled.
#pragma once

#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

struct UnseenTopology {
  std::string_view family;
  Topology topology;
};

inline constexpr std::string_view kUnseenFamilies[] = {
    "torus 2d",   "torus 3d",     "fat tree", "dgx",   "switch",
    "leaf-spine", "server graph", "bcube",    "dcell", "jellyfish"};
inline constexpr int kFirstSeenFamily = 7;  // from here on: larger ones of what is trained on

/// Servers on leaf switches, each of which has a cable to every spine switch.
inline Topology leaf_spine(int leaves, int spines, int servers_a_leaf) {
  Topology topology;
  topology.name = fmt::format("leaf-spine {}x{}, {} spines", leaves, servers_a_leaf, spines);
  topology.servers = leaves * servers_a_leaf;
  topology.switches = leaves + spines;
  for (int n = 0; n < topology.nodes(); ++n) topology.node_names.push_back(fmt::format("n{}", n));
  const auto cable = [&](int a, int b) {
    topology.links.push_back({a, b, 1});
    topology.links.push_back({b, a, 1});
  };
  for (int s = 0; s < topology.servers; ++s) cable(s, topology.servers + s / servers_a_leaf);
  for (int l = 0; l < leaves; ++l) {
    for (int p = 0; p < spines; ++p) cable(topology.servers + l, topology.servers + leaves + p);
  }
  return topology;
}

/// Servers joined as the switches of a Jellyfish are: no switches.
inline Topology server_graph(int servers, int degree, std::uint64_t seed) {
  const Topology jellyfish =
      *make_topology(fmt::format("jellyfish:{},{},seed={}", servers, degree, seed));
  Topology topology;
  topology.name = fmt::format("server graph {},{}", servers, degree);
  topology.servers = servers;
  for (int s = 0; s < servers; ++s) topology.node_names.push_back(fmt::format("s{}", s));
  for (const Topology::Link& link : jellyfish.links) {
    if (link.from < servers || link.to < servers) continue;
    topology.links.push_back({link.from - servers, link.to - servers, 1});
  }
  return topology;
}

inline Topology unseen_topology_of(int family, Rng& rng) {
  const auto pick = [&](int least, int most) {
    return least + static_cast<int>(rng.below(static_cast<std::uint64_t>(most - least + 1)));
  };
  const std::uint64_t seed = rng.next() % 1'000'000;
  const auto named = [](const std::string& spec) { return *make_topology(spec); };
  switch (family) {
    case 0:
      return named(fmt::format("torus:{},{}", pick(4, 6), pick(5, 8)));
    case 1:
      return named(fmt::format("torus:{},{},{}", pick(2, 4), pick(3, 4), pick(3, 4)));
    case 2:
      return named(rng.below(3) == 0 ? "fat_tree:6" : "fat_tree:4");
    case 3:
      return named(fmt::format("dgx:{},{},{}", pick(3, 6), pick(4, 8), pick(2, 12)));
    case 4:
      return named(fmt::format("switch:{}", pick(18, 40)));
    case 5:
      return leaf_spine(pick(4, 6), pick(2, 4), pick(4, 7));
    case 6:
      return server_graph(2 * pick(12, 22), pick(3, 5), seed);
    case 7: {
      constexpr const char* kSpecs[] = {"bcube:5,1", "bcube:6,1", "bcube:3,2", "bcube:2,4"};
      return named(kSpecs[rng.below(4)]);
    }
    case 8: {
      constexpr const char* kSpecs[] = {"dcell:4,1", "dcell:5,1", "dcell:6,1", "dcell:2,2"};
      return named(kSpecs[rng.below(4)]);
    }
    default:
      return named(fmt::format("jellyfish:{},{},seed={}", 2 * pick(12, 22), pick(3, 5), seed));
  }
}

inline std::vector<UnseenTopology> unseen_topologies(int count) {
  std::vector<UnseenTopology> result;
  for (int i = 0; i < count; ++i) {
    Rng rng = Rng(815).fork(fmt::format("unseen {}", i));
    const int family = i % 10, change = i / 10 % 3;
    Topology topology = unseen_topology_of(family, rng);
    if (change == 1) {
      Result<Topology> less = without_cables(topology, 0.06, rng.next());
      if (less.ok()) topology = std::move(*less);
      topology.name += " less 6%";
    }
    if (change == 2 || (change == 1 && family == 4)) {  // of one switch no cable can fail
      for (std::size_t l = 0; l + 1 < topology.links.size(); l += 2) {
        topology.links[l].capacity = topology.links[l + 1].capacity =
            topology.links[l].capacity * (1 + static_cast<std::int64_t>(rng.below(4)));
      }
      topology.name += " uneven";
    }
    AGPCS_CHECK(verify_topology(topology).ok(), "{}", topology.name);
    result.push_back({kUnseenFamilies[family], std::move(topology)});
  }
  return result;
}

}  // namespace agpcs
