// SPDX-License-Identifier: Apache-2.0
// derive_backward: finds the operators that the loss depends on, the tensors to which a gradient
// flows, and what is the same in each step.
#include "ir/graph/training_graph.h"

#include "ir/base/check.h"
#include "ir/graph/op_table.h"
#include "ir/graph/subgraph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

bool any_in(const std::vector<TensorId>& ids, const IdSet& set) {
  return std::any_of(ids.begin(), ids.end(), [&](TensorId id) { return set.has(id); });
}

/// Returns the operators that the loss depends on along any path.
IdSet needed_ops(const Graph& graph) {
  IdSet ops(graph.ops.size());
  IdSet tensors(graph.tensors.size());
  tensors.add(graph.loss);
  for (OpId id = static_cast<OpId>(graph.ops.size()) - 1; id >= 0; --id) {
    if (!any_in(graph.op(id).outputs, tensors)) continue;
    ops.add(id);
    for (const TensorId in : graph.op(id).inputs) {
      if (in != kNone) tensors.add(in);
    }
  }
  return ops;
}

/// Returns the tensors whose value depends on a parameter along a path that passes gradients.
IdSet depends_on_parameters(const Graph& graph) {
  IdSet found(graph.tensors.size());
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    if (graph.tensor(id).kind == TensorKind::kParameter) found.add(id);
  }
  for (const Op& op : graph.ops) {
    bool any = false;
    for (std::size_t i = 0; i < op.inputs.size() && !any; ++i) {
      any = found.has(op.inputs[i]) && passes_gradient(op, i);
    }
    for (const TensorId out : op.outputs) {
      if (any && out != kNone && is_floating(graph.tensor(out).type)) found.add(out);
    }
  }
  return found;
}

/// Returns the tensors that the loss's gradient reaches.
IdSet reached_by_gradient(const Graph& graph) {
  IdSet found(graph.tensors.size());
  found.add(graph.loss);
  for (OpId id = static_cast<OpId>(graph.ops.size()) - 1; id >= 0; --id) {
    const Op& op = graph.op(id);
    if (!any_in(op.outputs, found)) continue;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const TensorId in = op.inputs[i];
      if (in == kNone || !is_floating(graph.tensor(in).type)) continue;
      if (passes_gradient(op, i)) found.add(in);
    }
  }
  return found;
}

/// Names the first operator after `tensor` that passes no gradient back to it.
std::string where_gradient_stops(const Graph& graph, TensorId tensor, const IdSet& reached) {
  const auto& consumers = graph.tensor(tensor).consumers;
  for (const OpId id : consumers) {
    const Op& op = graph.op(id);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == tensor && !passes_gradient(op, i)) {
        return fmt::format("'{}' ({})", op.name, op.type);
      }
    }
  }
  for (const OpId id : consumers) {
    for (const TensorId out : graph.op(id).outputs) {
      if (out != kNone && !reached.has(out) && !graph.tensor(out).consumers.empty()) {
        return where_gradient_stops(graph, out, reached);
      }
    }
  }
  return fmt::format("'{}'", graph.op(consumers.front()).name);
}

Status check_parameters(const Graph& graph, const IdSet& reached) {
  for (const TensorId id : graph.parameters()) {
    const Tensor& parameter = graph.tensor(id);
    if (parameter.needs_gradient) continue;
    if (!is_floating(parameter.type)) {
      return invalid_input(
          fmt::format("parameter '{}' has type {}, only floating types are trained", parameter.name,
                      name_of(parameter.type)));
    }
    return invalid_input(
        fmt::format("no gradient reaches parameter '{}': operator {} does not pass one back\n"
                    "  hint: freeze it, if it is not to be trained: --freeze '{}'",
                    parameter.name, where_gradient_stops(graph, id, reached), parameter.name));
  }
  return {};
}

/// Returns "node 'fc' (Gemm)", or the name of an input.
std::string maker_of(const Graph& graph, const Tensor& tensor) {
  if (tensor.producer == kNone) return fmt::format("input '{}'", tensor.name);
  const Op& op = graph.op(tensor.producer);
  return fmt::format("node '{}' ({}): its output '{}'", op.name, op.type, tensor.name);
}

/// Checks that all tensors that a step computes with have elements.
Status check_elements(const Graph& graph) {
  for (const Tensor& tensor : graph.tensors) {
    const bool constant = tensor.kind == TensorKind::kConstant || tensor.kind == TensorKind::kState;
    const bool empty =
        std::find(tensor.shape.begin(), tensor.shape.end(), Extent()) != tensor.shape.end();
    if (constant || !empty) continue;
    return invalid_input(fmt::format("{} is {}{}, which has no element", maker_of(graph, tensor),
                                     name_of(tensor.type), shape_text(tensor.shape)));
  }
  return {};
}

/// Returns the operators whose values are the same in each step.
IdSet fixed_ops(const Graph& graph) {
  IdSet fixed(graph.ops.size()), leaving(graph.tensors.size());
  for (const TensorId id : graph.outputs) leaving.add(id);
  if (graph.loss != kNone) leaving.add(graph.loss);
  const auto is_known = [&](TensorId id) {
    if (id == kNone) return true;
    const Tensor& tensor = graph.tensor(id);
    const bool is_weight = tensor.frozen && tensor.shape.size() > 1;
    return (tensor.kind == TensorKind::kConstant && !is_weight) ||
           tensor.kind == TensorKind::kPrepared || fixed.has(tensor.producer);
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

Result<Graph> derive_backward(Graph graph, std::vector<std::string>* dropped) {
  AGPCS_CHECK(graph.loss != kNone, "graph '{}' has no loss", graph.called());
  const IdSet needed = needed_ops(graph);
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    if (dropped != nullptr && !needed.has(id)) dropped->push_back(graph.op(id).name);
  }
  IdSet loss(graph.tensors.size());
  loss.add(graph.loss);
  graph = subgraph(std::move(graph), needed, std::move(loss));
  AGPCS_RETURN_IF_ERROR(check_elements(graph));
  const IdSet depends = depends_on_parameters(graph);
  const IdSet reached = reached_by_gradient(graph);
  if (!depends.has(graph.loss)) {
    return invalid_input(
        fmt::format("loss '{}' depends on no parameter that a gradient could flow to, there is "
                    "nothing to train",
                    graph.tensor(graph.loss).name));
  }
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    graph.tensor(id).needs_gradient = depends.has(id) && reached.has(id);
  }
  AGPCS_RETURN_IF_ERROR(check_parameters(graph, reached));
  make_prologue(graph);
  return graph;
}

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
