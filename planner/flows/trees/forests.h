// SPDX-License-Identifier: Apache-2.0
// Flow trees that several methods build on.
#pragma once

#include "cost_model/round_simulator.h"
#include "ir/rng.h"
#include "ir/topology.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace agpcs {

/// Routes, each once.
class RouteTable {
 public:
  /// The number of the route from server `from` to `to` over `links`.
  std::int32_t number_of(int from, int to, std::vector<int> links);
  std::vector<FlowRoute> take() { return std::move(routes_); }

 private:
  std::map<std::vector<int>, std::int32_t> numbers_;  // by links, which say the ends
  std::vector<FlowRoute> routes_;
};

/// A walk over links from a server to a server that may pass others, as hops between servers. Loops
/// over switches are left out.
std::vector<FlowRoute> hops_of(const Topology& topology, const std::vector<int>& links);

/// Whether links come in pairs, each followed by one that leads back and carries as much (then link
/// l's twin is l ^ 1), and no routes are given.
bool has_equal_twins(const Topology& topology);

/// Routes of a topology as routes of the reversed one: over each link's twin.
/// Needs: `has_equal_twins`.
std::vector<FlowRoute> on_twins(std::vector<FlowRoute> routes);

/// Shortest ways from one server to all nodes, where servers forward too; a topology's own routes
/// where it has some. Among equal ways the last link is drawn.
class ShortestWays {
 public:
  ShortestWays(const Topology& topology, int from, Rng rng);
  /// The last hop of the way to server `to`.
  FlowRoute last_hop(int to) const;

 private:
  void search_links(Rng& rng);
  void search_routes(Rng& rng);

  const Topology& topology_;
  int from_;
  std::vector<int> before_;  // by node: the link that leads to it; with routes: the server before
};

/// The downward trees of all servers' chunks along shortest ways; upward ones are left empty.
FlowForest shortest_trees(const Topology& topology, Rng rng);

/// Downward trees of `down`, upward ones those of `up`, which was made for the reversed topology,
/// turned round. Needs: equal servers and sub_chunks.
FlowForest joined_both_ways(const FlowForest& up, const FlowForest& down);

}  // namespace agpcs
