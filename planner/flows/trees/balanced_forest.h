// SPDX-License-Identifier: Apache-2.0
// Flow trees for all sub-chunks of an all-reduce. No schedule of a forest takes fewer rounds than
// its heaviest link needs, so trees are chosen before anything is scheduled.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <string_view>

namespace agpcs {

enum class ForestKind {
  kShortest,  ///< shortest paths, ties drawn: the trees of the paper (section 4.1, merged)
  kBalanced,  ///< begins with those, then moves parents until link loads are even
};

struct ForestOptions {
  ForestKind kind = ForestKind::kBalanced;
  int sub_chunks = 1;
  std::uint64_t seed = 0;
  int sweeps = 24;  ///< most sweeps of balancing over all parents
  /// Evens the loads of both phases together, for phases that overlap: a slow server becomes a
  /// leaf. The upward trees are then the downward ones turned round, if links and routes allow
  /// that.
  bool overlapped = false;
};

/// Returns trees for `topology`. With `both` false there are downward trees only (`up` holds the
/// same routes then, which lead the wrong way). Otherwise there are upward trees too: those of the
/// reversed topology turned round, or the downward ones turned round if every link has a twin of
/// its capacity. Same arguments, same forest. Needs: `verify_topology` accepts `topology`.
/// Cost: shortest O(servers x hops), balanced O(sweeps x sub-chunks x servers x near hops).
FlowForest make_forest(const Topology& topology, const ForestOptions& options, bool both);

/// Returns the most rounds of sub-chunks that a link needs for all downward (or upward) trees.
double heaviest_link(const Topology& topology, const FlowForest& forest, bool down);

}  // namespace agpcs
