// SPDX-License-Identifier: Apache-2.0
#include "ir/team/body.h"

#include "ir/graph/op_table.h"
#include "ir/graph/subgraph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

/// A tensor without a gradient has one kind of copy.
TeamPlacement of_tensor(TeamPlacement placement, const Tensor& tensor) {
  if (!has_gradient(tensor)) placement.gradient_is_sum = false;
  return placement;
}

OpPlacements whole_placements(const Graph& graph, const TeamOp& op) {
  const TeamPlacement copy{Kind::kCopy, op.own_gradient};
  OpPlacements all;
  for (const TensorId id : graph.op(op.op).inputs) {
    all.inputs.push_back(id == kNone ? TeamPlacement() : of_tensor(copy, graph.tensor(id)));
  }
  for (const TensorId id : graph.op(op.op).outputs) {
    all.outputs.push_back(id == kNone ? TeamPlacement() : of_tensor(copy, graph.tensor(id)));
  }
  return all;
}

/// Members that reduce while they compute have the whole gradient of a copy, and no summands of it.
/// No rule says what they would have of the gradient of an input that is a copy.
bool place_inside(const Graph& graph, const Op& op, OpPlacements& all) {
  for (TeamPlacement& output : all.outputs) output.gradient_is_sum = false;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] == kNone || all.inputs[i].kind != Kind::kCopy) continue;
    if (has_gradient(graph.tensor(op.inputs[i])) && passes_gradient(op, i)) return false;
  }
  return true;
}

/// Returns whether the operator's division and bands are possible with a split. Indices point into
/// one range of units.
bool fits(const TeamOp& op, const OpSplit& split, const std::vector<Division>& divisions) {
  if (split.units == 0) return op.division == kNone && op.bands.empty();
  if (op.division < 0 || op.division >= static_cast<int>(divisions.size())) return false;
  const Division& division = divisions[static_cast<std::size_t>(op.division)];
  if (op.bands.empty()) return division.divides(split.units);
  return split.indices == kNone &&
         std::accumulate(op.bands.begin(), op.bands.end(), std::int64_t{0}) == split.units &&
         std::ranges::all_of(op.bands, [&](std::int64_t band) { return division.divides(band); });
}

struct PlacedExchange {
  int before = 0, form = kNone;
};

std::vector<TeamStep> steps_of(const std::vector<PlacedExchange>& exchanges, int operators) {
  std::vector<TeamStep> steps;
  int next = 0;
  for (const PlacedExchange& exchange : exchanges) {
    if (exchange.before > next) steps.push_back({next, exchange.before - 1, kNone});
    next = exchange.before;
    steps.push_back({0, kNone, exchange.form});
  }
  if (next < operators) steps.push_back({next, operators - 1, kNone});
  return steps;
}

}  // namespace

TeamBody lone_body(const Graph& graph, const std::vector<OpId>& ops) {
  TeamBody body;
  body.parts = {1};
  std::map<TensorId, int> form_of;
  const auto note = [&](const std::vector<TensorId>& ids) {
    for (const TensorId id : ids) {
      if (id != kNone) form_of[id] = 0;
    }
  };
  for (const OpId id : ops) {
    note(graph.op(id).inputs);
    note(graph.op(id).outputs);
  }
  for (auto& [id, form] : form_of) {
    form = static_cast<int>(body.forms.size());
    body.forms.push_back({id, {}});
  }
  const auto forms = [&](const std::vector<TensorId>& ids) {
    std::vector<int> found;
    for (const TensorId id : ids) found.push_back(id == kNone ? kNone : form_of.at(id));
    return found;
  };
  for (const OpId id : ops) {
    TeamOp op{id};
    op.inputs = forms(graph.op(id).inputs);
    op.outputs = forms(graph.op(id).outputs);
    body.ops.push_back(std::move(op));
  }
  order_steps(graph, body);
  return body;
}

bool divides_any(const TeamBody& body) {
  return std::ranges::any_of(body.ops, [](const TeamOp& op) { return op.division != kNone; });
}

bool has_gradient(const Tensor& tensor) {
  return tensor.needs_gradient && is_floating(tensor.type);
}

std::vector<TensorId> leaving_tensors(const Graph& graph, const std::vector<OpId>& ops) {
  IdSet inside(graph.ops.size());
  for (const OpId op : ops) inside.add(op);
  std::set<TensorId> leaving;
  for (const OpId op : ops) {
    for (const TensorId id : graph.op(op).outputs) {
      if (id == kNone) continue;
      const std::vector<OpId>& readers = graph.tensor(id).consumers;
      const bool read = std::any_of(readers.begin(), readers.end(),
                                    [&](OpId reader) { return !inside.has(reader); });
      if (read || id == graph.loss) leaving.insert(id);
    }
  }
  return {leaving.begin(), leaving.end()};
}

std::optional<OpPlacements> placements_of(const Graph& graph, const TeamOp& op,
                                          const std::vector<OpSplit>& splits,
                                          const std::vector<Division>& divisions) {
  if (op.split == kNone) return whole_placements(graph, op);
  if (op.split < 0 || op.split >= static_cast<int>(splits.size())) return std::nullopt;
  const OpSplit& split = splits[static_cast<std::size_t>(op.split)];
  if (!fits(op, split, divisions)) return std::nullopt;
  const std::vector<std::int64_t> bands = op.bands.empty() ? std::vector{split.units} : op.bands;
  OpPlacements all;
  const Op& whole = graph.op(op.op);
  const auto add = [&](const std::vector<TensorId>& ids, const std::vector<Placement>& given,
                       std::vector<TeamPlacement>& placements) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      placements.emplace_back();
      if (ids[i] == kNone) continue;
      const auto placement = team_placement(given[i], bands, op.division);
      if (!placement) return false;
      placements.back() = of_tensor(*placement, graph.tensor(ids[i]));
    }
    return true;
  };
  if (!add(whole.inputs, split.inputs, all.inputs)) return std::nullopt;
  if (!add(whole.outputs, split.outputs, all.outputs)) return std::nullopt;
  if (!split.inside.empty() && !place_inside(graph, whole, all)) return std::nullopt;
  return all;
}

TeamExchange forward_exchange(const TeamBody& body, int form) {
  const TeamForm& made = body.forms[static_cast<std::size_t>(form)];
  if (made.from == kNone) return TeamExchange::kNothing;
  return exchange_between(body.forms[static_cast<std::size_t>(made.from)].placement,
                          made.placement);
}

TeamExchange backward_exchange(const Graph& graph, const TeamBody& body, int form) {
  const TeamForm& made = body.forms[static_cast<std::size_t>(form)];
  if (made.from == kNone || !has_gradient(graph.tensor(made.tensor))) return TeamExchange::kNothing;
  return gradient_exchange(body.forms[static_cast<std::size_t>(made.from)].placement,
                           made.placement);
}

std::int64_t exchanged_bytes(const Tensor& tensor, std::int64_t samples, Precision precision) {
  return elements_at(tensor.shape, samples) *
         static_cast<std::int64_t>(element_bytes(tensor.type, precision));
}

std::vector<std::int64_t> inside_bytes(const Graph& graph, OpId op, const OpSplit& split,
                                       std::int64_t samples) {
  std::vector<std::int64_t> bytes;
  if (split.inside.empty()) return bytes;
  const Tensor& scores = graph.tensor(graph.op(op).inputs[0]);
  const std::int64_t rows = elements_at(scores.shape, samples) / split.units;
  for (const Placement::Kind kind : split.inside) {
    bytes.push_back(rows * 4 * (kind == Placement::Kind::kSum ? 2 : 1));  // in fp32
  }
  return bytes;
}

std::vector<int> first_uses(const TeamBody& body) {
  const auto none = static_cast<int>(body.ops.size());
  std::vector<int> first(body.forms.size(), none);
  for (int i = none - 1; i >= 0; --i) {
    for (const int form : body.ops[static_cast<std::size_t>(i)].inputs) {
      if (form != kNone) first[static_cast<std::size_t>(form)] = i;
    }
  }
  for (std::size_t form = first.size(); form-- > 0;) {
    const int from = body.forms[form].from;
    if (from == kNone) continue;
    int& other = first[static_cast<std::size_t>(from)];
    other = std::min(other, first[form]);
  }
  return first;
}

void order_steps(const Graph& graph, TeamBody& body) {
  const auto operators = static_cast<int>(body.ops.size());
  const std::vector<int> first = first_uses(body);
  std::vector<PlacedExchange> forward, backward;
  body.step_end.clear();
  for (int form = 0; form < static_cast<int>(body.forms.size()); ++form) {
    const PlacedExchange placed{first[static_cast<std::size_t>(form)], form};
    if (forward_exchange(body, form) != TeamExchange::kNothing) forward.push_back(placed);
    if (backward_exchange(graph, body, form) == TeamExchange::kNothing) continue;
    const TensorId tensor = body.forms[static_cast<std::size_t>(form)].tensor;
    if (graph.tensor(tensor).kind == TensorKind::kParameter) {
      body.step_end.push_back({0, kNone, form});
    } else {
      backward.push_back(placed);
    }
  }
  for (std::vector<PlacedExchange>* list : {&forward, &backward}) {
    std::ranges::stable_sort(*list, {}, &PlacedExchange::before);
  }
  body.forward = steps_of(forward, operators);
  body.backward = steps_of(backward, operators);
  std::ranges::reverse(body.backward);
  std::ranges::reverse(body.step_end);
}

}  // namespace agpcs
