// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/prologue.h"

#include "ir/graph/op_table.h"
#include "ir/graph/subgraph.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns the operators whose values are the same in each step.
IdSet fixed_ops(const Graph& graph) {
  IdSet fixed(graph.ops.size()), leaving(graph.tensors.size());
  for (const TensorId id : graph.outputs) leaving.add(id);
  if (graph.loss != kNone) leaving.add(graph.loss);
  const auto is_known = [&](TensorId id) {
    if (id == kNone) return true;
    const Tensor& tensor = graph.tensor(id);
    return tensor.kind == TensorKind::kConstant || tensor.kind == TensorKind::kPrepared ||
           fixed.has(tensor.producer);
  };
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const Op& op = graph.op(id);
    const bool leaves = std::any_of(op.outputs.begin(), op.outputs.end(),
                                    [&](TensorId output) { return leaving.has(output); });
    if (!leaves && !draws_numbers(op) && std::all_of(op.inputs.begin(), op.inputs.end(), is_known))
      fixed.add(id);
  }
  return fixed;
}

/// Returns the only reader of what an operator makes, or kNone.
OpId only_reader(const Graph& graph, const Op& op) {
  if (op.outputs.size() != 1 || op.outputs[0] == kNone) return kNone;
  const std::vector<OpId>& readers = graph.tensor(op.outputs[0]).consumers;
  return readers.size() == 1 ? readers.front() : kNone;
}

}  // namespace

void make_prologue(Graph& graph) {
  const IdSet fixed = fixed_ops(graph);
  IdSet moves(graph.ops.size());
  for (OpId id = static_cast<OpId>(graph.ops.size()) - 1; id >= 0; --id) {
    if (!fixed.has(id)) continue;
    const OpId reader = only_reader(graph, graph.op(id));
    if (class_of(graph.op(id)) != OpClass::kView || reader == kNone || moves.has(reader))
      moves.add(id);
  }
  std::vector<Op> ops;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    Op& op = graph.op(id);
    if (!moves.has(id)) {
      ops.push_back(std::move(op));
      continue;
    }
    for (const TensorId output : op.outputs) {
      if (output != kNone) graph.tensor(output).kind = TensorKind::kPrepared;
    }
    graph.prologue.push_back(std::move(op));
  }
  graph.ops = std::move(ops);
  link_graph(graph);
}

}  // namespace agpcs
