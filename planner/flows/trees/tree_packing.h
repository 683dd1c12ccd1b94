// SPDX-License-Identifier: Apache-2.0
// Spanning trees that share the links of a topology: for every server as root, K trees over which
// all servers get its sub-chunks within a number of rounds (Zhao et al., ForestColl, 2024).
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Units that go from one server straight to another, over a hop.
struct Lane {
  int from = 0, to = 0;  ///< servers
  std::int64_t units = 0;
  std::vector<int> links;
};

/// Turns what links carry in `rounds` rounds into lanes between servers. It takes out every switch
/// and joins its incoming units with outgoing ones evenly, never back to where they came from (edge
/// splitting). A topology's own routes share their links evenly.
std::vector<Lane> split_switches(const Topology& topology, std::int64_t rounds, Rng rng);

/// Turns what links carry in `rounds` rounds into lanes over `hops` (those of `shortest_hops`).
/// Every pair of servers takes a unit in turn; pairs that are n times as near as the farthest ones
/// take n^nearness units a turn. Such lanes leave units unused, but are short.
std::vector<Lane> short_lanes(const Topology& topology, const std::vector<FlowRoute>& hops,
                              std::int64_t rounds, int nearness, Rng rng);

/// Returns whether `trees_of_root` trees of every root fit on the lanes. They do if, into every set
/// of servers, as many units lead as there are trees with roots outside (Edmonds, 1973).
bool trees_fit(int servers, const std::vector<Lane>& lanes, int trees_of_root);

/// Packs that many trees of every root, downward; upward trees are empty. It grows trees one by
/// one, wide before deep, on lanes with many units left, and takes an edge only if all trees to
/// come still fit on what is left. Needs: `trees_fit`. Cost: O(trees) tests if no edge is refused;
/// a test is a max-flow for every server.
FlowForest pack_trees(int servers, const std::vector<Lane>& lanes, int trees_of_root, Rng rng);

}  // namespace agpcs
