// SPDX-License-Identifier: Apache-2.0
// Random connected topologies for tests: a random tree of servers and switches, more links drawn on
// top, capacities drawn for each direction, links that lead one way only.
#pragma once

#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <fmt/format.h>

namespace agpcs {

struct RandomTopologyOptions {
  int least_servers = 2, most_servers = 12;
  int most_switches = 4;
  int most_capacity = 3;
  bool symmetric = false;  ///< both ways carry as much, no link leads one way only
};

inline Topology random_topology(std::uint64_t seed, const RandomTopologyOptions& options = {}) {
  Rng rng = Rng(seed).fork("random topology");
  const auto draw = [&](int least, int most) {
    return least + static_cast<int>(rng.below(static_cast<std::uint64_t>(most - least + 1)));
  };
  for (;;) {
    Topology topology;
    topology.servers = draw(options.least_servers, options.most_servers);
    topology.switches = draw(0, options.most_switches);
    topology.name = fmt::format("random {}", seed);
    for (int s = 0; s < topology.servers; ++s) topology.node_names.push_back(fmt::format("s{}", s));
    for (int w = 0; w < topology.switches; ++w) {
      topology.node_names.push_back(fmt::format("w{}", w));
    }
    const auto join = [&](int a, int b) {
      const int there = draw(1, options.most_capacity), back = draw(1, options.most_capacity);
      topology.links.push_back({a, b, there});
      topology.links.push_back({b, a, options.symmetric ? there : back});
    };
    for (int node = 1; node < topology.nodes(); ++node) join(node, draw(0, node - 1));
    const int more = draw(0, topology.nodes());
    for (int i = 0; i < more; ++i) {
      const int a = draw(0, topology.nodes() - 1), b = draw(0, topology.nodes() - 1);
      if (a == b) continue;
      if (options.symmetric || draw(0, 3) > 0) {
        join(a, b);
      } else {
        topology.links.push_back({a, b, draw(1, options.most_capacity)});
      }
    }
    if (verify_topology(topology).ok()) return topology;
  }
}

}  // namespace agpcs
