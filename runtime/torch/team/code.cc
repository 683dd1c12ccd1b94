// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/team/code.h"

#include "ir/team/blocks.h"
#include "runtime/torch/team/member.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

const TeamForm& form_of(const TeamBody& body, int form) {
  return body.forms[static_cast<std::size_t>(form)];
}

/// The split of an operator that each member computes as a whole.
OpSplit no_split(const TeamOp& op) {
  OpSplit whole;
  whole.inputs.resize(op.inputs.size());
  whole.outputs.resize(op.outputs.size());
  return whole;
}

/// Returns what a member has of a constant.
at::Tensor placed(const TeamBody& body, const at::Tensor& whole, const TeamPlacement& placement,
                  std::size_t member) {
  if (placement.kind == Kind::kSum && member > 0) return at::zeros_like(whole);
  if (placement.kind != Kind::kPart) return whole;
  Tensors pieces;
  for (const UnitRange& range : part_elements(body.divisions, placement, member)) {
    pieces.push_back(whole.narrow(placement.axis, range.begin, range.size()));
  }
  return at::cat(pieces, placement.axis);
}

/// Returns where the runs of both passes begin, ascending, and the end.
std::set<int> bounds_of(const TeamBody& body) {
  std::set<int> bounds = {static_cast<int>(body.ops.size())};
  for (const auto* steps : {&body.forward, &body.backward}) {
    for (const TeamStep& step : *steps) {
      if (step.form == kNone) bounds.insert(step.first);
    }
  }
  return bounds;
}

}  // namespace

SharedForms shared_forms(const Graph& graph, const TeamBody& body) {
  SharedForms shared;
  for (int form = 0; form < static_cast<int>(body.forms.size()); ++form) {
    const int from = form_of(body, form).from;
    const bool same_value = from != kNone && forward_exchange(body, form) == TeamExchange::kNothing;
    const bool same_gradient =
        from != kNone && backward_exchange(graph, body, form) == TeamExchange::kNothing;
    const auto of = [&](bool same, const std::vector<int>& sets) {
      return same ? sets[static_cast<std::size_t>(from)] : form;
    };
    shared.value.push_back(of(same_value, shared.value));
    shared.gradient.push_back(of(same_gradient, shared.gradient));
    shared.variable.push_back(of(same_value && same_gradient, shared.variable));
  }
  shared.variables.resize(body.forms.size());
  for (int form = 0; form < static_cast<int>(body.forms.size()); ++form) {
    const auto at = static_cast<std::size_t>(form);
    if (shared.variable[at] != form) continue;
    shared.variables[static_cast<std::size_t>(shared.value[at])].push_back(form);
  }
  return shared;
}

std::vector<TensorId> body_inputs(const Graph& graph, const TeamBody& body) {
  std::set<TensorId> made, read;
  for (const TeamOp& of : body.ops) {
    const Op& op = graph.op(of.op);
    for (const TensorId id : op.inputs) {
      if (id == kNone || is_fixed(graph.tensor(id))) continue;
      if (made.count(id) == 0) read.insert(id);
    }
    made.insert(op.outputs.begin(), op.outputs.end());
  }
  return {read.begin(), read.end()};
}

int leaving_form(const TeamBody& body, TensorId tensor) {
  const auto found = std::find_if(body.forms.begin(), body.forms.end(), [&](const TeamForm& form) {
    return form.tensor == tensor && form.placement == TeamPlacement();
  });
  return found == body.forms.end() ? kNone : static_cast<int>(found - body.forms.begin());
}

Result<TeamCode> TeamCode::compile(const Graph& graph, const TeamBody& body, std::size_t member,
                                   std::int64_t samples, at::Device device) {
  std::vector<OpId> ops;
  for (const TeamOp& op : body.ops) ops.push_back(op.op);
  AGPCS_RETURN_IF_ERROR(check_kernels(graph, ops));
  TeamCode code(graph, body, member, samples);
  std::vector<TensorId> read;
  for (const OpId op : ops) {
    for (const TensorId id : graph.op(op).inputs) {
      if (id != kNone && is_fixed(graph.tensor(id))) read.push_back(id);
    }
  }
  Fixed fixed;
  AGPCS_TRY(fixed.whole, fixed_tensors(graph, read, samples));
  for (const TeamOp& op : body.ops) code.bind(op, fixed, device);
  code.find_regions();
  code.find_results();
  code.find_last_uses();
  return code;
}

void TeamCode::bind(const TeamOp& of, Fixed& fixed, at::Device device) {
  Step step;
  step.split = of.split == kNone ? no_split(of)
                                 : splits_of(*graph_, of.op)[static_cast<std::size_t>(of.split)];
  if (of.division != kNone) {
    const Division& division = body_->divisions[static_cast<std::size_t>(of.division)];
    step.units = division.range(member_, step.split.units);
    step.mean_part = division.part(member_);
  }
  step.op = member_op(graph_->op(of.op), step.split, step.units.size());
  load_constants(of, step, fixed, device);
  find_random(of, step);
  steps_.push_back(std::move(step));
}

void TeamCode::load_constants(const TeamOp& of, Step& step, Fixed& fixed, at::Device device) const {
  step.constants.resize(step.op.inputs.size());
  step.host.resize(step.op.inputs.size());
  for (std::size_t i = 0; i < step.op.inputs.size(); ++i) {
    const auto whole = fixed.whole.find(step.op.inputs[i]);
    if (whole == fixed.whole.end()) continue;
    const int form = of.inputs[i];
    const auto [own, is_new] = fixed.own.try_emplace(form);
    if (is_new) {
      own->second.host = placed(*body_, whole->second, form_of(*body_, form).placement, member_);
      own->second.here = own->second.host.to(device);
    }
    step.host[i] = renumbered(own->second.host, step.split, static_cast<int>(i), step.units.size());
    const bool as_it_is = step.host[i].is_same(own->second.host);
    step.constants[i] = as_it_is ? own->second.here : step.host[i].to(device);
  }
}

/// Random numbers are those of the whole tensor's elements.
void TeamCode::find_random(const TeamOp& of, Step& step) const {
  step.random.samples = samples_;
  if (of.inputs.empty() || of.inputs[0] == kNone) return;
  const Shape& shape = graph_->tensor(step.op.inputs[0]).shape;
  step.random.batch_axis = batch_axis_of(shape);
  const TeamPlacement& placement = form_of(*body_, of.inputs[0]).placement;
  if (placement.kind != Kind::kPart) return;
  step.random.part_axis = placement.axis;
  step.random.part_of = dims_at(shape, samples_)[static_cast<std::size_t>(placement.axis)];
  step.random.part = part_elements(body_->divisions, placement, member_);
}

void TeamCode::find_regions() {
  const std::set<int> bounds = bounds_of(*body_);
  std::map<int, int> region_at;  // by first operator
  for (auto bound = bounds.begin(); std::next(bound) != bounds.end(); ++bound) {
    region_at.emplace(*bound, static_cast<int>(regions_.size()));
    regions_.push_back({*bound, *std::next(bound) - 1, {}});
  }
  const auto actions = [&](const std::vector<TeamStep>& steps, bool back) {
    std::vector<Action> all;
    for (const TeamStep& step : steps) {
      if (step.form != kNone) {
        all.push_back({kNone, step.form, {}});
        continue;
      }
      const int first = region_at.at(step.first);
      const auto past = region_at.upper_bound(step.last);
      const int count =
          (past == region_at.end() ? static_cast<int>(regions_.size()) : past->second) - first;
      for (int i = 0; i < count; ++i) {
        all.push_back({back ? first + count - 1 - i : first + i, kNone, {}});
      }
    }
    return all;
  };
  forward_ = actions(body_->forward, false);
  backward_ = actions(body_->backward, true);
}

/// A result is what an operator makes that operators of other regions read, of which another form
/// is made, or that leaves.
void TeamCode::find_results() {
  std::vector<std::set<int>> readers(body_->forms.size());  // regions, by variable
  std::set<TensorId> leaving, exchanged;
  std::vector<OpId> ops;
  for (const TeamOp& op : body_->ops) ops.push_back(op.op);
  for (const TensorId id : leaving_tensors(*graph_, ops)) leaving.insert(id);
  for (std::size_t form = 0; form < body_->forms.size(); ++form) {
    const TeamForm& one = body_->forms[form];
    if (one.from != kNone && shared_.variable[form] == static_cast<int>(form)) {
      exchanged.insert(one.tensor);
    }
  }
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    for (int i = regions_[r].first; i <= regions_[r].last; ++i) {
      for (const int form : body_->ops[static_cast<std::size_t>(i)].inputs) {
        if (form == kNone) continue;
        const int variable = shared_.variable[static_cast<std::size_t>(form)];
        readers[static_cast<std::size_t>(variable)].insert(static_cast<int>(r));
      }
    }
  }
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    for (int i = regions_[r].first; i <= regions_[r].last; ++i) {
      for (const int form : body_->ops[static_cast<std::size_t>(i)].outputs) {
        if (form == kNone) continue;
        const TensorId tensor = form_of(*body_, form).tensor;
        const std::set<int>& by = readers[static_cast<std::size_t>(form)];
        const bool read = std::any_of(by.begin(), by.end(),
                                      [&](int other) { return other != static_cast<int>(r); });
        if (read || exchanged.count(tensor) != 0 || leaving.count(tensor) != 0) {
          regions_[r].results.push_back(form);
        }
      }
    }
  }
}

void TeamCode::find_last_uses() {
  std::set<int> seen;
  std::vector<OpId> ops;
  for (const TeamOp& op : body_->ops) ops.push_back(op.op);
  const auto value = [&](int form) { return shared_.value[static_cast<std::size_t>(form)]; };
  for (const TensorId id : leaving_tensors(*graph_, ops)) {
    seen.insert(value(leaving_form(*body_, id)));
  }
  const auto use = [&](int form, std::vector<int>& dead) {
    if (form != kNone && seen.insert(value(form)).second) dead.push_back(value(form));
  };
  for (auto action = forward_.rbegin(); action != forward_.rend(); ++action) {
    if (action->form != kNone) {
      use(form_of(*body_, action->form).from, action->dead);
      continue;
    }
    const Region& region = regions_[static_cast<std::size_t>(action->region)];
    for (int i = region.last; i >= region.first; --i) {
      const TeamOp& op = body_->ops[static_cast<std::size_t>(i)];
      std::vector<int>& dead = steps_[static_cast<std::size_t>(i)].dead;
      for (const int form : op.inputs) use(form, dead);
      for (const int form : op.outputs) use(form, dead);
    }
  }
}

}  // namespace agpcs
