// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/subgraph.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

/// Takes the operators of the prologue that make tensors in `used`, and adds all their tensors.
std::vector<Op> needed_prologue(Graph& graph, IdSet& used) {
  std::vector<Op> needed;
  for (auto op = graph.prologue.rbegin(); op != graph.prologue.rend(); ++op) {
    if (std::none_of(op->outputs.begin(), op->outputs.end(),
                     [&](TensorId id) { return used.has(id); }))
      continue;
    for (const auto* ids : {&op->inputs, &op->outputs}) {
      for (const TensorId tensor : *ids) {
        if (tensor != kNone) used.add(tensor);
      }
    }
    needed.push_back(std::move(*op));
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

}  // namespace

Graph subgraph(Graph graph, const IdSet& kept, IdSet used) {
  std::vector<Op> ops;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    if (!kept.has(id)) continue;
    for (const auto* ids : {&graph.op(id).inputs, &graph.op(id).outputs}) {
      for (const TensorId tensor : *ids) {
        if (tensor != kNone) used.add(tensor);
      }
    }
    ops.push_back(std::move(graph.op(id)));
  }
  std::vector<Op> prologue = needed_prologue(graph, used);
  std::vector<TensorId> new_id(graph.tensors.size(), kNone);
  std::vector<Tensor> tensors;
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    if (!used.has(id)) continue;
    new_id[static_cast<std::size_t>(id)] = static_cast<TensorId>(tensors.size());
    tensors.push_back(std::move(graph.tensor(id)));
  }
  const auto renumbered = [&](TensorId id) {
    return id == kNone ? kNone : new_id[static_cast<std::size_t>(id)];
  };
  const auto renumber = [&](std::vector<TensorId>& ids) {
    for (TensorId& id : ids) id = renumbered(id);
  };
  for (auto* list : {&prologue, &ops}) {
    for (Op& op : *list) {
      renumber(op.inputs);
      renumber(op.outputs);
    }
  }
  for (auto* ids : {&graph.inputs, &graph.outputs}) {
    renumber(*ids);
    std::erase(*ids, kNone);
  }
  graph.loss = renumbered(graph.loss);
  graph.prologue = std::move(prologue);
  graph.ops = std::move(ops);
  graph.tensors = std::move(tensors);
  link_graph(graph);
  return graph;
}

}  // namespace agpcs
