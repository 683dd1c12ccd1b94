// SPDX-License-Identifier: Apache-2.0
// Flow trees on which several methods build.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace agpcs {

/// A table that holds each route once.
class RouteTable {
 public:
  /// Returns the number of the route from server `from` to `to` over `links`.
  std::int32_t number_of(int from, int to, std::vector<int> links);
  std::vector<FlowRoute> take() { return std::move(routes_); }

 private:
  std::map<std::vector<int>, std::int32_t> numbers_;  // by links, which determine the ends
  std::vector<FlowRoute> routes_;
};

/// Splits a walk over links from server to server, which may pass others, into hops between
/// servers. Leaves out loops over switches.
std::vector<FlowRoute> hops_of(const Topology& topology, const std::vector<int>& links);

/// Returns whether links come in pairs, each followed by one that leads back and carries as much
/// (then link l's twin is l ^ 1), and the topology has no routes of its own.
bool has_equal_twins(const Topology& topology);

/// Turns routes of a topology into routes of the reversed one: over each link's twin. Needs:
/// `has_equal_twins`.
std::vector<FlowRoute> on_twins(std::vector<FlowRoute> routes);

/// Shortest ways from one server to all nodes, where servers forward too; they follow the
/// topology's own routes if it has some. Among equal ways the last link is drawn.
class ShortestWays {
 public:
  ShortestWays(const Topology& topology, int from, Rng rng);
  /// Returns the last hop of the way to server `to`.
  FlowRoute last_hop(int to) const;

 private:
  void search_links(Rng& rng);
  void search_routes(Rng& rng);

  const Topology& topology_;
  int from_;
  std::vector<int> before_;  // by node: the link that leads to it; with routes: the server before
};

/// Returns the downward trees of all servers' chunks along shortest ways. Upward trees are empty.
FlowForest shortest_trees(const Topology& topology, Rng rng);

/// Returns a forest with the downward trees of `down`, and as upward trees those of `up`, turned
/// round, which was made for the reversed topology. Needs: equal servers and sub_chunks.
FlowForest joined_both_ways(const FlowForest& up, const FlowForest& down);

}  // namespace agpcs
