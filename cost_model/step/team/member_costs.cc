// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/team/member_costs.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/graph/op_signature.h"
#include "ir/graph/op_table.h"
#include "ir/graph/split/split.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

/// Returns how many inputs of operators return a gradient to the tensor.
std::size_t gradient_uses(const Graph& graph, TensorId id) {
  if (!graph.tensor(id).needs_gradient) return 0;
  std::size_t uses = 0;
  for (const OpId consumer : graph.tensor(id).consumers) {
    const Op& op = graph.op(consumer);
    const bool returns = std::ranges::any_of(op.outputs, [&](TensorId output) {
      return output != kNone && graph.tensor(output).needs_gradient;
    });
    for (std::size_t i = 0; returns && i < op.inputs.size(); ++i) {
      if (op.inputs[i] == id && passes_gradient(op, i)) ++uses;
    }
  }
  return uses;
}

/// Adds parts of operators to a graph, each with tensors of its own.
class PartsGraph {
 public:
  explicit PartsGraph(const Graph& whole) : whole_(whole) {}

  OpId add(const MemberOp& part) {
    const Op& op = whole_.op(part.op);
    std::optional<OpSplit> split;
    if (part.units > 0) split = splits_of(whole_, part.op)[at(part.split)];
    Op own = split ? member_op(op, *split, part.units) : op;
    own.fused = kNone;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const TensorId same = repeated(op, own, split, i);
      if (same != kNone || op.inputs[i] == kNone) {
        own.inputs[i] = same;
        continue;
      }
      own.inputs[i] = add_tensor(op.inputs[i], split ? &split->inputs[i] : nullptr, part.units);
      if (split) set_numbers(out_.tensors.back(), *split, i, part.units);
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      if (op.outputs[i] == kNone) continue;
      own.outputs[i] = add_tensor(op.outputs[i], split ? &split->outputs[i] : nullptr, part.units);
      add_uses(own.outputs[i], gradient_uses(whole_, op.outputs[i]));
    }
    out_.ops.push_back(std::move(own));
    return static_cast<OpId>(out_.ops.size()) - 1;
  }

  Graph take() {
    link_graph(out_);
    return std::move(out_);
  }

 private:
  /// Returns the tensor of an earlier input that has the same part of the same tensor.
  static TensorId repeated(const Op& op, const Op& own, const std::optional<OpSplit>& split,
                           std::size_t i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (op.inputs[j] != op.inputs[i]) continue;
      if (!split || split->inputs[j] == split->inputs[i]) return own.inputs[j];
    }
    return kNone;
  }

  TensorId add_tensor(TensorId id, const Placement* placement, std::int64_t units) {
    Tensor own = whole_.tensor(id);
    own.producer = kNone;
    own.consumers.clear();
    if (placement != nullptr && placement->kind == Placement::Kind::kPart) {
      own.shape[at(placement->axis)].fixed =
          units *
          std::accumulate(placement->bands.begin(), placement->bands.end(), std::int64_t{0});
    }
    out_.tensors.push_back(std::move(own));
    return static_cast<TensorId>(out_.tensors.size()) - 1;
  }

  /// Gives an input of integers the numbers that a member has.
  static void set_numbers(Tensor& tensor, const OpSplit& split, std::size_t input,
                          std::int64_t units) {
    const bool has = std::ranges::any_of(split.numbers, [&](const MemberNumber& number) {
      return number.attribute.empty() && number.input == static_cast<int>(input);
    });
    if (!has || tensor.constant.bytes.empty()) return;
    const std::vector<std::int64_t> ints =
        member_ints(tensor.constant.ints_at(0), split, static_cast<int>(input), units);
    std::memcpy(tensor.constant.bytes.data(), ints.data(), ints.size() * sizeof(std::int64_t));
  }

  /// Adds an operator that reads the tensor so often, because its producer adds up as many
  /// gradients.
  void add_uses(TensorId id, std::size_t uses) {
    if (uses < 2) return;
    Op reader;
    reader.domain = "agpcs";
    reader.type = "Readers";
    reader.inputs.assign(uses, id);
    Tensor end;
    end.needs_gradient = true;
    reader.outputs = {static_cast<TensorId>(out_.tensors.size())};
    out_.tensors.push_back(std::move(end));
    out_.ops.push_back(std::move(reader));
  }

  const Graph& whole_;
  Graph out_;
};

}  // namespace

MemberOp member_op(const Graph& graph, const TeamBody& body, const TeamOp& op, std::size_t member) {
  if (op.division == kNone) return {op.op, kNone, 0};
  const std::int64_t units = splits_of(graph, op.op)[at(op.split)].units;
  return {op.op, op.split, body.divisions[at(op.division)].range(member, units).size()};
}

/// Returns whether the table of the whole graph has the part.
bool MemberCosts::is_whole(const MemberOp& part) const {
  return part.units == 0 && graph_.op(part.op).fused == kNone;
}

OpId MemberCosts::alike(OpId op) {
  if (alike_.empty()) alike_.assign(graph_.ops.size(), kNone);
  OpId& known = alike_[at(op)];
  if (known == kNone) known = first_.emplace(op_signature(graph_, op), op).first->second;
  return known;
}

void MemberCosts::prepare(std::span<const MemberOp> parts) {
  std::vector<MemberOp> divided;
  for (const MemberOp& part : parts) {
    if (!is_whole(part)) divided.push_back({alike(part.op), part.split, part.units});
  }
  add(divided);
}

void MemberCosts::add(std::span<const MemberOp> parts) {
  PartsGraph graph(graph_);
  std::vector<std::pair<MemberOp, OpId>> added;
  for (const MemberOp& part : parts) {
    if (places_.emplace(part, Place()).second) added.emplace_back(part, graph.add(part));
  }
  if (added.empty()) return;
  auto known = std::make_unique<Known>();
  known->graph = graph.take();
  Result<CostTable> costs = CostTable::make(known->graph, cluster_, training_, true);
  AGPCS_CHECK(costs.ok(), "parts of operators: {}", costs.status().message());
  known->costs = *std::move(costs);
  for (const auto& [part, op] : added) places_[part] = {&known->costs, op};
  known_.push_back(std::move(known));
}

MemberCosts::Place MemberCosts::place_of(const MemberOp& part) {
  const MemberOp of = {alike(part.op), part.split, part.units};
  const auto found = places_.find(of);
  if (found != places_.end()) return found->second;
  add({&of, 1});
  return places_.at(of);
}

/// Returns the seconds of a part that may be all of an operator whose table is not the graph's.
OpSeconds MemberCosts::part_seconds(int kind, const MemberOp& part, std::int64_t samples) {
  const Place place = place_of(part);
  OpSeconds seconds = place.costs->seconds(kind, place.op, samples);
  const bool anchored = part.units > 0 && graph_.op(part.op).fused == kNone &&
                        costs_.is_measured(kind, part.op) &&
                        !place.costs->is_measured(kind, place.op);
  if (!anchored) return seconds;
  const OpSeconds measured = costs_.seconds(kind, part.op, samples);
  const OpSeconds fitted = costs_.unmeasured_seconds(kind, part.op, samples);
  if (fitted.forward > 0) seconds.forward *= measured.forward / fitted.forward;
  if (fitted.backward > 0) seconds.backward *= measured.backward / fitted.backward;
  return seconds;
}

OpSeconds MemberCosts::seconds(int kind, const MemberOp& part, std::int64_t samples) {
  if (is_whole(part)) return costs_.seconds(kind, part.op, samples);
  OpSeconds seconds = part_seconds(kind, part, samples);
  if (part.op == 0 && part.units > 0 && graph_.op(0).fused == kNone) {
    // The first operator waits for the samples to be loaded, of which each member needs all.
    const OpSeconds whole = part_seconds(kind, {0, kNone, 0}, samples);
    seconds.forward += costs_.seconds(kind, 0, samples).forward - whole.forward;
  }
  return seconds;
}

}  // namespace agpcs
