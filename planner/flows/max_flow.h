// SPDX-License-Identifier: Apache-2.0
// Maximum flow into one node from many, on a graph whose capacities change between runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Exact integers: capacities are products of servers, rounds and units.
__extension__ using FlowAmount = __int128;

/// Dinic's algorithm from the sink backward, so that a run looks no further than the nearest
/// sources that fill the sink. Cost of a run: O(nodes^2 arcs) at worst, mostly a few phases.
class MaxFlow {
 public:
  explicit MaxFlow(int nodes);

  /// The number of the new arc.
  int add(int from, int to, FlowAmount capacity);
  void set_capacity(int arc, FlowAmount capacity);
  FlowAmount capacity(int arc) const { return capacity_[static_cast<std::size_t>(2 * arc)]; }
  /// Sources give as much as one likes.
  void set_source(int node, bool is_source) { source_[static_cast<std::size_t>(node)] = is_source; }

  /// The most that flows from all sources into `sink`, or `limit` if it is more. What earlier runs
  /// found is dropped. A sink that is a source takes all.
  FlowAmount run(int sink, FlowAmount limit);
  /// After a run that ended below its limit: by node, whether it is on the sink's side of a minimum
  /// cut.
  std::vector<bool> sink_side() const;

 private:
  std::size_t degree(int node) const { return arcs_[static_cast<std::size_t>(node)].size(); }
  bool mark_levels(int sink);
  FlowAmount push(int node, FlowAmount wanted);
  void forget();

  // Arc a's directions are 2a and 2a + 1 (back).
  std::vector<std::vector<int>> arcs_;  // by node: directions that lead out of it
  std::vector<int> to_;                 // by direction
  std::vector<FlowAmount> capacity_, left_;
  std::vector<bool> source_;
  std::vector<int> level_;         // by node: links to the sink; -1: not seen
  std::vector<std::size_t> next_;  // by node: directions that are used up in this phase
  std::vector<int> seen_;          // nodes with a level
  std::vector<int> used_;          // directions whose left_ is not their capacity, perhaps
};

}  // namespace agpcs
