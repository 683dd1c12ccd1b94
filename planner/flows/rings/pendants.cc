// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/rings/pendants.h"

#include "ir/base/at.h"
#include "planner/flows/rings/part.h"
#include "planner/flows/rings/rings.h"
#include "planner/flows/trees/forests.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct Hanging {
  std::vector<int> on;              // by server: the server that it hangs on, or -1
  std::vector<std::int32_t> route;  // by server: the hop to it
  std::vector<std::int32_t> back;   // by server: the hop from it
};

/// Finds servers whose links all lead to one server, then those of which this holds without the
/// former.
Hanging find_hanging(const Topology& topology, RouteTable& routes) {
  Hanging hanging = {std::vector<int>(at(topology.servers), -1), {}, {}};
  hanging.route = hanging.back = std::vector<std::int32_t>(at(topology.servers), -1);
  const auto hangs = [&](int node) {
    return topology.is_server(node) && hanging.on[at(node)] >= 0;
  };
  for (bool found = true; found;) {
    found = false;
    std::vector<int> only(at(topology.servers), -1);  // its one neighbour; -2: several or a switch
    for (const Topology::Link& link : topology.links) {
      for (const auto& [mine, other] :
           {std::pair(link.from, link.to), std::pair(link.to, link.from)}) {
        if (!topology.is_server(mine) || hangs(mine) || hangs(other)) continue;
        int& neighbour = only[at(mine)];
        const bool same = topology.is_server(other) && (neighbour == -1 || neighbour == other);
        neighbour = same ? other : -2;
      }
    }
    for (int s = 0; s < topology.servers; ++s) {
      if (only[at(s)] < 0 || hangs(only[at(s)])) continue;
      hanging.on[at(s)] = only[at(s)];
      found = true;
    }
  }
  for (int l = 0; l < static_cast<int>(topology.links.size()); ++l) {
    const auto [from, to] = std::pair(topology.links[at(l)].from, topology.links[at(l)].to);
    if (hangs(to) && hanging.on[at(to)] == from)
      hanging.route[at(to)] = routes.number_of(from, to, {l});
    if (hangs(from) && hanging.on[at(from)] == to)
      hanging.back[at(from)] = routes.number_of(from, to, {l});
  }
  return hanging;
}

}  // namespace

std::optional<FlowForest> ring_with_pendants(const Topology& topology, const Rng& rng, int tries) {
  RouteTable routes;
  const Hanging hanging = find_hanging(topology, routes);
  std::vector<int> core;
  for (int s = 0; s < topology.servers; ++s) {
    if (hanging.on[at(s)] < 0) core.push_back(s);
  }
  if (core.size() < 2 || core.size() == at(topology.servers) || !topology.routes.empty()) return {};
  std::vector<std::int64_t> units;
  for (const Topology::Link& link : topology.links) units.push_back(link.capacity);
  const FlowPart part = part_of(topology, core, units);
  const std::vector<FlowRing> rings = find_rings(part.topology, 1, rng, tries);
  if (rings.empty()) return {};
  std::vector<std::int32_t> into(at(topology.servers), -1);  // by server: the ring's hop to it
  std::vector<int> next(at(topology.servers), -1);
  for (const FlowRoute& hop : rings[0].hops) {
    FlowRoute route = part.whole(hop);
    next[at(route.from)] = route.to;
    into[at(route.to)] = routes.number_of(route.from, route.to, std::move(route.links));
  }
  FlowForest forest = {topology.servers, 1, {}, {}};
  for (int owner = 0; owner < topology.servers; ++owner) {
    FlowTree tree = {owner, {}, hanging.route};
    int at_ring = owner;
    tree.down[at(owner)] = -1;
    for (; hanging.on[at(at_ring)] >= 0; at_ring = hanging.on[at(at_ring)]) {
      tree.down[at(hanging.on[at(at_ring)])] = hanging.back[at(at_ring)];
    }
    for (int s = next[at(at_ring)]; s != at_ring; s = next[at(s)]) tree.down[at(s)] = into[at(s)];
    tree.up = tree.down;
    forest.trees.push_back(std::move(tree));
  }
  forest.routes = routes.take();
  return forest;
}

}  // namespace agpcs
