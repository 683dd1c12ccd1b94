// SPDX-License-Identifier: Apache-2.0
// Maximum flow from many nodes into one, on a graph whose capacities change between runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// The integers are exact: capacities are products of servers, rounds and units.
__extension__ using FlowAmount = __int128;

/// Runs Dinic's algorithm from the sink backward, so that a run looks no further than the nearest
/// sources that fill the sink. Cost of a run: O(nodes^2 arcs) at worst, mostly a few phases.
class MaxFlow {
 public:
  explicit MaxFlow(int nodes);

  /// Adds an arc and returns its number.
  int add(int from, int to, FlowAmount capacity);
  void set_capacity(int arc, FlowAmount capacity);
  FlowAmount capacity(int arc) const { return capacity_[static_cast<std::size_t>(2 * arc)]; }
  /// Makes a node a source or not. Sources give without limit.
  void set_source(int node, bool is_source) { source_[static_cast<std::size_t>(node)] = is_source; }

  /// Returns the most that flows from all sources into `sink`, or `limit` if it is more. Drops what
  /// earlier runs found. A sink that is a source takes all.
  FlowAmount run(int sink, FlowAmount limit);
  /// Returns, by node, whether it is on the sink's side of a minimum cut. Needs: the last run ended
  /// below its limit.
  std::vector<bool> sink_side() const;

 private:
  std::size_t degree(int node) const { return arcs_[static_cast<std::size_t>(node)].size(); }
  bool mark_levels(int sink);
  FlowAmount push(int node, FlowAmount wanted);
  void forget();

  // The directions of arc a are 2a, and 2a + 1 back.
  std::vector<std::vector<int>> arcs_;  // by node: directions that lead out of it
  std::vector<int> to_;                 // by direction
  std::vector<FlowAmount> capacity_, left_;
  std::vector<bool> source_;
  std::vector<int> level_;         // by node: links to the sink; -1: not seen
  std::vector<std::size_t> next_;  // by node: directions that are used up in this phase
  std::vector<int> seen_;          // nodes with a level
  std::vector<int> used_;          // directions whose left_ may differ from their capacity
};

}  // namespace agpcs
