// SPDX-License-Identifier: Apache-2.0
// Spanning trees that share the links of a topology: for every server as root K trees over which
// all servers get its sub-chunks within a number of rounds (Zhao et al., ForestColl, 2024).
#pragma once

#include "cost_model/round_simulator.h"
#include "ir/rng.h"
#include "ir/topology.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Units from one server straight to another, over a hop.
struct Lane {
  int from = 0, to = 0;  ///< servers
  std::int64_t units = 0;
  std::vector<int> links;
};

/// What links carry in `rounds` rounds as lanes between servers: every switch is taken out, its
/// incoming units joined with outgoing ones evenly and never back to where they came from (edge
/// splitting). A topology's own routes share their links evenly.
std::vector<Lane> split_switches(const Topology& topology, std::int64_t rounds, Rng rng);

/// What links carry in `rounds` rounds as lanes over `hops` (those of `shortest_hops`), a unit for
/// every pair of servers in turn; pairs that are n times as near as the farthest ones take
/// n^nearness units a turn. Such lanes leave units unused, but are short.
std::vector<Lane> short_lanes(const Topology& topology, const std::vector<FlowRoute>& hops,
                              std::int64_t rounds, int nearness, Rng rng);

/// Whether `trees_of_root` trees of every root fit on the lanes: into every set of servers as many
/// units lead as there are trees with roots outside (Edmonds, 1973).
bool trees_fit(int servers, const std::vector<Lane>& lanes, int trees_of_root);

/// That many trees of every root, downward; upward ones are left empty. Needs: `trees_fit`. Trees
/// are grown one by one, wide before deep, on lanes with many units left; an edge is taken only if
/// what is left still fits all trees to come. Cost: O(trees) tests, of a max-flow for every server
/// each, where no edge is refused.
FlowForest pack_trees(int servers, const std::vector<Lane>& lanes, int trees_of_root, Rng rng);

}  // namespace agpcs
