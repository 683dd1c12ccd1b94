// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/trees/forests.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

std::vector<std::vector<int>> links_from(const Topology& topology) {
  std::vector<std::vector<int>> out(static_cast<std::size_t>(topology.nodes()));
  for (std::size_t l = 0; l < topology.links.size(); ++l) {
    out[static_cast<std::size_t>(topology.links[l].from)].push_back(static_cast<int>(l));
  }
  return out;
}

/// Removes the loops of a path: links that lead from a node back to it.
void drop_loops(const Topology& topology, std::vector<int>& links) {
  for (std::size_t i = 0; i < links.size(); ++i) {
    const int at = topology.links[static_cast<std::size_t>(links[i])].from;
    for (std::size_t j = links.size(); j-- > i;) {
      if (topology.links[static_cast<std::size_t>(links[j])].to != at) continue;
      links.erase(links.begin() + static_cast<std::ptrdiff_t>(i),
                  links.begin() + static_cast<std::ptrdiff_t>(j) + 1);
      break;
    }
  }
}

}  // namespace

std::int32_t RouteTable::number_of(int from, int to, std::vector<int> links) {
  const auto [place, is_new] = numbers_.emplace(links, static_cast<std::int32_t>(routes_.size()));
  if (is_new) routes_.push_back({from, to, std::move(links)});
  return place->second;
}

std::vector<FlowRoute> hops_of(const Topology& topology, const std::vector<int>& links) {
  std::vector<FlowRoute> hops;
  for (const int l : links) {
    const Topology::Link& link = topology.links[static_cast<std::size_t>(l)];
    if (topology.is_server(link.from)) hops.push_back({link.from, -1, {}});
    hops.back().links.push_back(l);
    hops.back().to = link.to;
  }
  for (FlowRoute& hop : hops) drop_loops(topology, hop.links);
  return hops;
}

bool has_equal_twins(const Topology& topology) {
  const std::vector<Topology::Link>& links = topology.links;
  if (links.size() % 2 != 0 || !topology.routes.empty()) return false;
  for (std::size_t l = 0; l < links.size(); l += 2) {
    if (links[l].from != links[l + 1].to || links[l].to != links[l + 1].from ||
        links[l].capacity != links[l + 1].capacity) {
      return false;
    }
  }
  return true;
}

std::vector<FlowRoute> on_twins(std::vector<FlowRoute> routes) {
  for (FlowRoute& route : routes) {
    for (int& link : route.links) link ^= 1;
  }
  return routes;
}

ShortestWays::ShortestWays(const Topology& topology, int from, Rng rng)
    : topology_(topology), from_(from) {
  if (topology.routes.empty()) {
    search_links(rng);
  } else {
    search_routes(rng);
  }
}

// Searches breadth first; each link by which a node is reached first is equally likely to be kept.
void ShortestWays::search_links(Rng& rng) {
  const std::vector<std::vector<int>> out = links_from(topology_);
  const auto nodes = static_cast<std::size_t>(topology_.nodes());
  std::vector<int> distance(nodes, -1), ways(nodes, 0), queue = {from_};
  before_.assign(nodes, -1);
  distance[static_cast<std::size_t>(from_)] = 0;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const auto at = static_cast<std::size_t>(queue[i]);
    for (const int l : out[at]) {
      const int to = topology_.links[static_cast<std::size_t>(l)].to;
      const auto t = static_cast<std::size_t>(to);
      if (distance[t] < 0) {
        distance[t] = distance[at] + 1;
        queue.push_back(to);
      }
      if (distance[t] != distance[at] + 1) continue;
      if (rng.below(static_cast<std::uint64_t>(++ways[t])) == 0) before_[t] = l;
    }
  }
}

// Runs Dijkstra's algorithm over servers; a route costs its number of links.
void ShortestWays::search_routes(Rng& rng) {
  const auto servers = static_cast<std::size_t>(topology_.servers);
  constexpr std::size_t kFar = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> distance(servers, kFar);
  std::vector<std::uint64_t> ways(servers, 0);
  std::vector<bool> is_final(servers, false);
  before_.assign(servers, -1);
  distance[static_cast<std::size_t>(from_)] = 0;
  for (std::size_t step = 0; step < servers; ++step) {
    std::size_t at = servers;
    for (std::size_t s = 0; s < servers; ++s) {
      if (!is_final[s] && (at == servers || distance[s] < distance[at])) at = s;
    }
    is_final[at] = true;
    for (std::size_t to = 0; to < servers; ++to) {
      if (is_final[to]) continue;
      const std::size_t far = distance[at] + topology_.routes[at * servers + to].size();
      if (far > distance[to]) continue;
      if (far < distance[to]) ways[to] = 0;
      distance[to] = far;
      if (rng.below(++ways[to]) == 0) before_[to] = static_cast<int>(at);
    }
  }
}

FlowRoute ShortestWays::last_hop(int to) const {
  if (!topology_.routes.empty()) {
    const int from = before_[static_cast<std::size_t>(to)];
    const auto pair = static_cast<std::size_t>(from) * static_cast<std::size_t>(topology_.servers) +
                      static_cast<std::size_t>(to);
    return {from, to, topology_.routes[pair]};
  }
  FlowRoute hop = {to, to, {}};
  do {
    const int link = before_[static_cast<std::size_t>(hop.from)];
    hop.links.push_back(link);
    hop.from = topology_.links[static_cast<std::size_t>(link)].from;
  } while (!topology_.is_server(hop.from));
  std::reverse(hop.links.begin(), hop.links.end());
  return hop;
}

FlowForest shortest_trees(const Topology& topology, Rng rng) {
  FlowForest forest = {topology.servers, 1, {}, {}};
  RouteTable routes;
  for (int owner = 0; owner < topology.servers; ++owner) {
    const ShortestWays ways(topology, owner, Rng(rng.next()));
    FlowTree& tree = forest.trees.emplace_back(FlowTree{owner, {}, {}});
    for (int s = 0; s < topology.servers; ++s) {
      if (s == owner) {
        tree.down.push_back(-1);
        continue;
      }
      FlowRoute hop = ways.last_hop(s);
      tree.down.push_back(routes.number_of(hop.from, hop.to, std::move(hop.links)));
    }
  }
  forest.routes = routes.take();
  return forest;
}

FlowForest joined_both_ways(const FlowForest& up, const FlowForest& down) {
  FlowForest forest = down;
  const auto first = static_cast<std::int32_t>(forest.routes.size());
  for (FlowRoute route : up.routes) {
    std::swap(route.from, route.to);
    std::reverse(route.links.begin(), route.links.end());
    forest.routes.push_back(std::move(route));
  }
  for (std::size_t t = 0; t < forest.trees.size(); ++t) {
    forest.trees[t].up = up.trees[t].down;
    for (std::int32_t& route : forest.trees[t].up) route += route < 0 ? 0 : first;
  }
  return forest;
}

}  // namespace agpcs
