// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/team/member_costs.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/graph/op_signature.h"
#include "ir/graph/op_table.h"
#include "ir/graph/split/split.h"
#include "ir/team/placement.h"

#include <algorithm>
#include <cmath>
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
class PartsMaker {
 public:
  explicit PartsMaker(const Graph& whole) : whole_(whole) {}

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

PartsGraph graph_of_parts(const Graph& whole, std::span<const MemberOp> parts) {
  PartsMaker maker(whole);
  PartsGraph made;
  for (const MemberOp& part : parts) made.ops.push_back(maker.add(part));
  made.graph = maker.take();
  return made;
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
  std::vector<MemberOp> fresh;
  for (const MemberOp& part : parts) {
    if (places_.emplace(part, Place()).second) fresh.push_back(part);
  }
  if (fresh.empty()) return;
  auto known = std::make_unique<Known>();
  PartsGraph made = graph_of_parts(graph_, fresh);
  known->graph = std::move(made.graph);
  Result<CostTable> costs = CostTable::make(known->graph, cluster_, training_, true);
  AGPCS_CHECK(costs.ok(), "parts of operators: {}", costs.status().message());
  known->costs = *std::move(costs);
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    places_[fresh[i]] = {&known->costs, made.ops[i]};
  }
  known_.push_back(std::move(known));
}

MemberCosts::Place MemberCosts::place_of(const MemberOp& part) {
  const MemberOp of = {alike(part.op), part.split, part.units};
  const auto found = places_.find(of);
  if (found != places_.end()) return found->second;
  add({&of, 1});
  return places_.at(of);
}

/// Returns what the kind's profile has measured of the part's operator, but not of the part.
const MemberCosts::Anchors& MemberCosts::anchors_of(int kind, const MemberOp& part) {
  const MemberOp of = {alike(part.op), part.split, part.units};
  const auto [at_known, fresh] = anchors_.try_emplace({kind, of});
  Anchors& anchors = at_known->second;
  if (!fresh) return anchors;
  const ProfileRef& ref = cluster_.kinds[at(kind)].profile;
  if (!ref.given() || graph_.op(of.op).fused != kNone) return anchors;
  const DeviceProfile* const profile = cluster_.profiles[at(ref.profile)].find_device(ref.entry);
  AGPCS_CHECK(profile != nullptr, "no entry '{}' in profile {}", ref.entry, ref.profile);
  const std::int64_t units = splits_of(graph_, of.op)[at(of.split)].units;
  const auto logarithm = [&](std::int64_t own) {
    return std::log2(static_cast<double>(own) / static_cast<double>(units));
  };
  anchors.logarithm = logarithm(of.units);
  if (costs_.is_measured(kind, of.op)) anchors.of.push_back({0, {&costs_, of.op}});
  for (const std::int64_t members : profile->teams) {
    const auto even = divide(units, std::vector<std::int64_t>(at(members), 1));
    if (!even) continue;
    const std::int64_t own = even->range(0, units).size();
    const Place place = place_of({of.op, of.split, own});
    if (place.costs->is_measured(kind, place.op)) anchors.of.push_back({logarithm(own), place});
  }
  std::ranges::sort(anchors.of, {}, &Anchor::logarithm);
  return anchors;
}

/// Returns the seconds of a part that may be all of an operator whose table is not the graph's.
OpSeconds MemberCosts::part_seconds(int kind, const MemberOp& part, std::int64_t samples) {
  const Place place = place_of(part);
  OpSeconds seconds = place.costs->seconds(kind, place.op, samples);
  if (part.units == 0 || place.costs->is_measured(kind, place.op)) return seconds;
  const Anchors& anchors = anchors_of(kind, part);
  if (anchors.of.empty()) return seconds;
  const auto factor_at = [&](const Anchor& anchor) -> OpSeconds {
    const CostTable& costs = *anchor.place.costs;
    const OpSeconds measured = costs.seconds(kind, anchor.place.op, samples);
    const OpSeconds fitted = costs.unmeasured_seconds(kind, anchor.place.op, samples);
    return {fitted.forward > 0 ? measured.forward / fitted.forward : 1,
            fitted.backward > 0 ? measured.backward / fitted.backward : 1};
  };
  const auto above =
      std::ranges::lower_bound(anchors.of, anchors.logarithm, {}, &Anchor::logarithm);
  OpSeconds factor = factor_at(above == anchors.of.end() ? anchors.of.back() : *above);
  if (above != anchors.of.begin() && above != anchors.of.end()) {
    const Anchor& below = *(above - 1);
    const double weight =
        (anchors.logarithm - below.logarithm) / (above->logarithm - below.logarithm);
    const OpSeconds smaller = factor_at(below);
    factor = {std::lerp(smaller.forward, factor.forward, weight),
              std::lerp(smaller.backward, factor.backward, weight)};
  }
  return {seconds.forward * factor.forward, seconds.backward * factor.backward};
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
