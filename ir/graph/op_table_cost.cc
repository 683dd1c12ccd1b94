// SPDX-License-Identifier: Apache-2.0
// Computes costs and kept activations of an operator by the rules of its row.
#include "ir/graph/fused_attention.h"
#include "ir/graph/op_table_rules.h"
#include "ir/plan/choices.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

using Basis = BackwardRule::Basis;

/// Returns how many inputs of consumers of `tensor`, counted with repetition, return it a gradient.
int gradient_uses(const OpAt& at, TensorId tensor) {
  int uses = 0;
  for (const OpId consumer : at.graph.tensor(tensor).consumers) {
    const OpAt there{at.graph, at.graph.op(consumer), at.samples, at.precision};
    for (std::size_t i = 0; i < there.op.inputs.size(); ++i) {
      if (there.op.inputs[i] == tensor && there.needs_gradient(i)) ++uses;
    }
  }
  return uses;
}

}  // namespace

int gradient_sums(const OpAt& at, TensorId tensor) {
  if (!at.graph.tensor(tensor).needs_gradient) return 0;
  return std::max(0, gradient_uses(at, tensor) - 1);
}

namespace {

/// Adds the cost of summing the gradients that several consumers return: an addition for each
/// element and each use after the first.
void add_gradient_sums(const OpAt& at, OpCost& cost) {
  for (const TensorId id : at.op.outputs) {
    if (id == kNone) continue;
    const int sums = gradient_sums(at, id);
    cost.backward_flops += sums * at.elements(&at.graph.tensor(id));
    cost.backward_bytes += 3.0 * sums * at.bytes(&at.graph.tensor(id));
  }
}

/// Returns true for an elementwise input that was broadcast; its gradient is a sum over the output.
bool is_broadcast(const OpAt& at, const OpInfo& info, std::size_t i) {
  return info.op_class == OpClass::kElementwise &&
         at.elements(at.input(i)) < at.elements(at.first_output());
}

/// Returns the operators of the attention that `at` is a part of, or is.
std::vector<OpId> attention_of(const OpAt& at) {
  if (at.op.fused == kNone) return {static_cast<OpId>(&at.op - at.graph.ops.data())};
  return at.graph.fused[static_cast<std::size_t>(at.op.fused)].ops;
}

double contraction_backward(const OpAt& at, double forward, std::size_t operands) {
  const double bias = operands == 2 && at.input(2) != nullptr ? at.elements(at.output(0)) : 0;
  double flops = 0;
  for (std::size_t i = 0; i < at.op.inputs.size(); ++i) {
    if (at.needs_gradient(i)) flops += i < operands ? forward - bias : bias;
  }
  return flops;
}

double per_output_backward(const OpAt& at, const OpInfo& info) {
  const double out = at.elements(at.first_output());
  double flops = 0;
  for (std::size_t i = 0; i < at.op.inputs.size(); ++i) {
    if (!at.needs_gradient(i)) continue;
    flops += info.backward.factor * out + (is_broadcast(at, info, i) ? out : 0);
  }
  return flops;
}

double backward_flops(const OpAt& at, const OpInfo& info, double forward) {
  switch (info.backward.basis) {
    case Basis::kContraction:
      return contraction_backward(at, forward, 2);
    case Basis::kAllOperands:
      return contraction_backward(at, forward, at.op.inputs.size());
    case Basis::kForward:
      return info.backward.factor * forward;
    case Basis::kInput:
      return (info.backward.factor + (smooths_labels(at.op) ? 1 : 0)) * at.elements(at.input(0));
    case Basis::kOutput:
    case Basis::kPassed:
      return per_output_backward(at, info);
  }
  return 0;
}

/// Returns the bytes of the inputs, each tensor once.
double input_bytes(const OpAt& at, std::size_t from) {
  double bytes = 0;
  const auto& inputs = at.op.inputs;
  for (std::size_t i = from; i < inputs.size(); ++i) {
    const auto first = inputs.begin() + static_cast<std::ptrdiff_t>(from);
    const auto here = inputs.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(first, here, inputs[i]) == here) bytes += at.bytes(at.input(i));
  }
  return bytes;
}

double output_bytes(const OpAt& at) {
  double bytes = 0;
  for (std::size_t i = 0; i < at.op.outputs.size(); ++i) bytes += at.bytes(at.output(i));
  return bytes;
}

/// Returns the bytes of an attention's scores.
double score_bytes(const OpAt& at) {
  if (at.input(0) == nullptr) return 0;
  return rules::attention_scores(at) *
         static_cast<double>(element_bytes(at.input(0)->type, at.precision));
}

double forward_bytes(const OpAt& at, const OpInfo& info) {
  switch (info.traffic) {
    case Traffic::kAll:
      return input_bytes(at, 0) + output_bytes(at);
    case Traffic::kScores:  // written by the product, then read and written by scale, mask and
                            // softmax, and read by the second product
      return input_bytes(at, 0) + output_bytes(at) + 8 * score_bytes(at);
    case Traffic::kSelected:
      return input_bytes(at, 1) + 2 * output_bytes(at);
    case Traffic::kWrites:
      return output_bytes(at);
    case Traffic::kFree:
      return 0;
  }
  return 0;
}

/// Returns the kept tensors as the row names them: with parameters, views and repetitions.
Kept raw_kept(const OpAt& at, const OpInfo& info) {
  Kept kept;
  if (info.keep.add != nullptr && at.needs_any_gradient()) info.keep.add(at, kept);
  return kept;
}

/// Returns the bytes of a contraction's backward pass: the gradient of each operand reads the
/// output's gradient and the other operand again.
double contraction_backward_bytes(const OpAt& at) {
  const double operands = at.bytes(at.input(0)) + at.bytes(at.input(1));
  double bytes = 0;
  for (std::size_t i = 0; i < at.op.inputs.size(); ++i) {
    if (!at.needs_gradient(i)) continue;
    bytes += at.bytes(at.output(0)) + (i < 2 ? operands : at.bytes(at.input(i)));
  }
  return bytes;
}

/// Returns true for a gradient that is passed on unchanged; it costs nothing unless it is summed
/// over a broadcast.
bool is_passed_on(const OpAt& at, const OpInfo& info, std::size_t i) {
  return info.backward.basis == Basis::kPassed && info.op_class == OpClass::kElementwise &&
         !is_broadcast(at, info, i);
}

/// Returns the bytes of a backward pass that reads the outputs' gradients and what is kept, and
/// writes the inputs' gradients.
double pass_backward_bytes(const OpAt& at, const OpInfo& info) {
  double bytes = 0;
  for (std::size_t i = 0; i < at.op.inputs.size(); ++i) {
    if (at.needs_gradient(i) && !is_passed_on(at, info, i)) bytes += at.bytes(at.input(i));
  }
  if (bytes == 0) return 0;
  for (std::size_t i = 0; i < at.op.outputs.size(); ++i) {
    if (at.output(i) != nullptr && at.output(i)->needs_gradient) bytes += at.bytes(at.output(i));
  }
  const Kept kept = raw_kept(at, info);
  for (const TensorId id : kept.tensors) bytes += at.bytes(&at.graph.tensor(id));
  return bytes + static_cast<double>(kept.extra_bytes);
}

double backward_bytes(const OpAt& at, const OpInfo& info) {
  if (info.traffic == Traffic::kFree) return 0;
  if (info.backward.basis == Basis::kContraction) return contraction_backward_bytes(at);
  // The gradients of softmax and scale are written and read twice, like the scores before.
  const double steps = info.traffic == Traffic::kScores ? 6 * score_bytes(at) : 0;
  return pass_backward_bytes(at, info) + steps;
}

bool stays_anyway(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kState ||
         tensor.kind == TensorKind::kConstant || tensor.kind == TensorKind::kPrepared;
}

}  // namespace

std::size_t element_bytes(DType type, Precision precision) {
  const std::size_t held = size_of(entry_of(kPrecisions, precision).held);
  return held == 2 && is_floating(type) ? held : size_of(type);
}

TensorId storage_of(const Graph& graph, TensorId tensor) {
  while (graph.tensor(tensor).producer != kNone) {
    const Op& op = graph.op(graph.tensor(tensor).producer);
    if (op.outputs[0] != tensor || !is_view(graph, op)) break;
    tensor = op.inputs[0];
  }
  return tensor;
}

namespace {

OpCost cost_of_steps(const OpAt& at) {
  const OpInfo& info = op_info_of(at.op);
  OpCost cost;
  add_gradient_sums(at, cost);
  if (is_view(at.graph, at.op)) return cost;
  cost.forward_flops = forward_flops(info, at);
  cost.forward_bytes = forward_bytes(at, info);
  if (at.needs_any_gradient()) {
    cost.backward_flops += backward_flops(at, info, cost.forward_flops);
    cost.backward_bytes += backward_bytes(at, info);
  }
  return cost;
}

/// Returns true for an operator of an attention that one kernel computes.
bool is_fused(const Op& op) { return op.fused != kNone || is_one_kernel(op); }

/// Returns true for an operator of a fused attention other than the last one, which stands for all.
bool is_inside_fused(const OpAt& at) {
  return at.op.fused != kNone && &at.op != &at.graph.op(attention_of(at).back());
}

/// The work and memory of a fused attention.
class FusedAt {
 public:
  /// Needs: `at` is the last operator.
  explicit FusedAt(const OpAt& at) : at_(at), ops_(attention_of(at)) {
    for (const OpId op : ops_) {
      for (const TensorId id : at.graph.op(op).inputs) {
        if (id == kNone || at.graph.is_fused_away(id)) continue;
        if (std::find(reads_.begin(), reads_.end(), id) == reads_.end()) reads_.push_back(id);
      }
    }
  }

  /// The work of all steps; the backward pass computes the scores again. Bytes are read and written
  /// once. They are those of queries, keys, values, masks, the output, and a fp32 number for each
  /// query and head, by which the softmax is computed again (Dao et al., 2022, algorithms 1 and 4).
  OpCost cost() const {
    OpCost cost;
    for (const OpId op : ops_) {
      const OpCost step = cost_of_steps(step_at(op));
      cost.forward_flops += step.forward_flops;
      cost.backward_flops += step.backward_flops;
    }
    const double output = output_bytes(at_), read = bytes_of(reads_);
    cost.forward_bytes = read + output + softmax_bytes();
    if (!has_gradient()) return {cost.forward_flops, 0, cost.forward_bytes, 0};
    cost.backward_flops += score_flops();
    cost.backward_bytes = read + 2 * output + softmax_bytes();
    for (const TensorId id : reads_) {
      const Tensor& tensor = at_.graph.tensor(id);
      if (tensor.needs_gradient) cost.backward_bytes += at_.bytes(&tensor);
    }
    OpCost sums;
    add_gradient_sums(at_, sums);
    cost.backward_bytes += sums.backward_bytes;
    return cost;
  }

  /// Returns what is kept, as tensors of the graph: inputs, output, and the numbers of the softmax.
  Kept kept() const {
    if (!has_gradient()) return {};
    Kept kept;
    kept.tensors = reads_;
    if (at_.output(0) != nullptr) kept.tensors.push_back(at_.op.outputs[0]);
    kept.extra_bytes = static_cast<std::int64_t>(softmax_bytes());
    return kept;
  }

 private:
  OpAt step_at(OpId op) const { return {at_.graph, at_.graph.op(op), at_.samples, at_.precision}; }
  bool is_one() const { return ops_.size() == 1; }
  bool has_gradient() const {
    return std::any_of(reads_.begin(), reads_.end(),
                       [&](TensorId id) { return at_.graph.tensor(id).needs_gradient; });
  }
  double bytes_of(const std::vector<TensorId>& tensors) const {
    double bytes = 0;
    for (const TensorId id : tensors) bytes += at_.bytes(&at_.graph.tensor(id));
    return bytes;
  }
  double softmax_bytes() const {
    if (is_one()) return 4 * rules::attention_scores(at_) / rules::attention_keys(at_);
    for (const OpId op : ops_) {
      const OpAt step = step_at(op);
      if (step.op.type != "Softmax") continue;
      return 4 * step.elements(step.output(0)) / step.extent(step.output(0), -1);
    }
    return 0;
  }
  double score_flops() const {
    if (is_one()) return rules::attention_score_flops(at_);
    double flops = 0;
    for (const OpId op : ops_) {
      if (op != ops_.back()) flops += cost_of_steps(step_at(op)).forward_flops;
    }
    return flops;
  }

  const OpAt& at_;
  std::vector<OpId> ops_;
  std::vector<TensorId> reads_;  // what it reads of others, each once
};

}  // namespace

OpCost op_cost(const Graph& graph, OpId op, std::int64_t samples, Precision precision) {
  const OpAt at{graph, graph.op(op), samples, precision};
  if (!is_fused(at.op)) return cost_of_steps(at);
  return is_inside_fused(at) ? OpCost() : FusedAt(at).cost();
}

Kept kept_for_backward(const Graph& graph, OpId op, std::int64_t samples, Precision precision) {
  const OpAt at{graph, graph.op(op), samples, precision};
  if (is_inside_fused(at)) return {};
  const Kept raw = is_fused(at.op) ? FusedAt(at).kept() : raw_kept(at, op_info_of(at.op));
  Kept kept;
  kept.extra_bytes = raw.extra_bytes;
  for (const TensorId id : raw.tensors) {
    const TensorId storage = storage_of(graph, id);
    if (stays_anyway(graph.tensor(storage))) continue;
    if (std::find(kept.tensors.begin(), kept.tensors.end(), storage) == kept.tensors.end()) {
      kept.tensors.push_back(storage);
    }
  }
  return kept;
}

}  // namespace agpcs
