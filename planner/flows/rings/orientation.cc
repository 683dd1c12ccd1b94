// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/rings/orientation.h"

#include "ir/base/at.h"
#include "ir/base/shuffle.h"

#include <algorithm>
#include <map>
#include <utility>

namespace agpcs {
namespace {

struct Port {
  int out = 0, in = 0;  // links
  int medium = 0;
};

struct Edge {
  Port a, b;
  bool used = false;
};

/// Returns the links and media of all ports, by server. Media are nodes, then cables between
/// servers.
std::vector<std::vector<Port>> ports_of(const Topology& topology, int& media) {
  std::map<std::pair<int, int>, int> back, cables;
  media = topology.nodes();
  for (int l = 0; l < static_cast<int>(topology.links.size()); ++l) {
    const Topology::Link& link = topology.links[at(l)];
    back.emplace(std::pair(link.to, link.from), l);
    if (topology.is_server(link.from) && topology.is_server(link.to) && link.from < link.to) {
      if (cables.emplace(std::pair(link.from, link.to), media).second) ++media;
    }
  }
  std::vector<std::vector<Port>> ports(at(topology.servers));
  for (int l = 0; l < static_cast<int>(topology.links.size()); ++l) {
    const Topology::Link& link = topology.links[at(l)];
    const auto twin = back.find({link.from, link.to});
    if (!topology.is_server(link.from) || twin == back.end()) continue;
    const auto cable = cables.find(std::minmax(link.from, link.to));
    ports[at(link.from)].push_back(
        {l, twin->second, cable == cables.end() ? link.to : cable->second});
  }
  return ports;
}

}  // namespace

std::vector<std::int64_t> orient_servers(const Topology& topology, Rng& rng) {
  int media = 0;
  std::vector<Edge> edges;
  for (std::vector<Port>& ports : ports_of(topology, media)) {
    if (ports.size() < 2) continue;
    for (std::size_t i = 0; i < 2; ++i) {
      std::swap(ports[i], ports[i + rng.below(ports.size() - i)]);
    }
    edges.push_back({ports[0], ports[1], false});
  }
  std::vector<std::vector<int>> at_medium(at(media));
  for (int e = 0; e < static_cast<int>(edges.size()); ++e) {
    at_medium[at(edges[at(e)].a.medium)].push_back(e);
    at_medium[at(edges[at(e)].b.medium)].push_back(e);
  }
  std::vector<int> starts;  // media where trails begin, odd ones first: their trails are long
  for (const bool odd : {true, false}) {
    for (int m = 0; m < media; ++m) {
      if ((at_medium[at(m)].size() % 2 == 1) == odd) starts.push_back(m);
    }
  }
  for (std::vector<int>& there : at_medium) {
    shuffle(there, rng);
  }
  std::vector<std::int64_t> chosen(topology.links.size(), 0);
  for (const int start : starts) {
    for (int medium = start; !at_medium[at(medium)].empty();) {
      const int e = at_medium[at(medium)].back();
      at_medium[at(medium)].pop_back();
      Edge& edge = edges[at(e)];
      if (edge.used) continue;
      edge.used = true;
      const bool forward = edge.a.medium == medium;
      chosen[at(forward ? edge.a.in : edge.b.in)] = 1;
      chosen[at(forward ? edge.b.out : edge.a.out)] = 1;
      medium = forward ? edge.b.medium : edge.a.medium;
    }
  }
  return chosen;
}

}  // namespace agpcs
