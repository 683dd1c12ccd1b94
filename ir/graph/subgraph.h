// SPDX-License-Identifier: Apache-2.0
// A part of a graph as a graph of its own.
#pragma once

#include "ir/graph/graph.h"

#include <cstddef>
#include <vector>

namespace agpcs {

/// A set of tensors or operators, by id.
class IdSet {
 public:
  explicit IdSet(std::size_t size) : has_(size) {}
  void add(int id) { has_[static_cast<std::size_t>(id)] = true; }
  bool has(int id) const { return id != kNone && has_[static_cast<std::size_t>(id)]; }

 private:
  std::vector<bool> has_;
};

/// Keeps the operators in `kept`, their tensors and the tensors in `used`; removes all others,
/// also from the graph's inputs and outputs. Ids change. Needs: the loss is kept, if there is one;
/// attentions are not fused. Cost: O(operators + tensors).
Graph subgraph(Graph graph, const IdSet& kept, IdSet used);

}  // namespace agpcs
