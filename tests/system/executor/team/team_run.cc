// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/team/team_run.h"

#include "tests/system/executor/split_member.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace agpcs::testing {
namespace {

using Kind = Placement::Kind;

/// Returns the gradients of `in` from those of `out`; undefined where none flows.
Tensors go_back(const Tensors& in, const Tensors& out, const Tensors& seeds) {
  at::Tensor product;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].defined() || !out[i].requires_grad() || !seeds[i].defined()) continue;
    add_to(product, (out[i] * seeds[i]).sum());
  }
  if (product.defined()) product.backward();
  Tensors gradients;
  for (const at::Tensor& x : in) {
    gradients.push_back(x.defined() && x.requires_grad() ? x.grad() : at::Tensor());
  }
  return gradients;
}

class Team {
 public:
  Team(const Graph& graph, const TeamBody& body, std::int64_t samples)
      : graph_(graph), body_(body), samples_(samples), gradients_(body.forms.size()) {
    for (const TeamOp& op : body.ops) ops_.push_back(op.op);
  }

  TrainedStep run(const std::vector<TensorMap>& leaves) {
    TrainedStep result;
    for (const TensorMap& own : leaves) {
      values_.assign(body_.forms.size(), {});
      runs_.assign(body_.ops.size(), {});
      begin(own);
      for (const TeamStep& step : body_.forward) forward(step);
      result.values.push_back(whole_values());
      seed();
      for (const TeamStep& step : body_.backward) backward(step);
      result.gradients.push_back(take_gradients());
    }
    for (const TeamStep& step : body_.step_end) exchange_gradient(step.form);
    result.parameter_gradients = whole_gradients(true);
    return result;
  }

 private:
  struct Run {  // of one operator
    std::vector<SplitMember> members;
    bool together = false;
  };

  std::size_t count() const { return body_.members(); }
  const TeamForm& form(int id) const { return body_.forms[static_cast<std::size_t>(id)]; }
  Tensors& value(int id) { return values_[static_cast<std::size_t>(id)]; }
  Tensors& gradient(int id) { return gradients_[static_cast<std::size_t>(id)]; }

  at::Tensor part_of(const at::Tensor& x, const TeamPlacement& placement, std::size_t m) const {
    const Division& division = body_.divisions[static_cast<std::size_t>(placement.division)];
    Tensors pieces;
    std::int64_t first = 0;
    for (const std::int64_t band : placement.bands) {
      const UnitRange own = division.range(m, band);
      pieces.push_back(x.narrow(placement.axis, first + own.begin, own.size()));
      first += band;
    }
    return at::cat(pieces, placement.axis);
  }

  Tensors placed(const at::Tensor& x, const TeamPlacement& placement) const {
    Tensors members;
    for (std::size_t m = 0; m < count(); ++m) {
      if (placement.kind == Kind::kPart) {
        members.push_back(part_of(x, placement, m));
      } else {
        const bool zeros = placement.kind == Kind::kSum && m > 0;
        members.push_back(zeros ? at::zeros_like(x) : x);
      }
    }
    return members;
  }

  at::Tensor whole_of(const Tensors& members, const TeamPlacement& placement,
                      const Tensor& tensor) const {
    for (const at::Tensor& own : members) {
      if (!own.defined()) throw std::runtime_error(tensor.name + " is not there");
    }
    if (placement.kind == Kind::kSum) {
      at::Tensor sum;
      for (const at::Tensor& own : members) add_to(sum, own);
      return sum;
    }
    if (placement.kind == Kind::kCopy) {
      for (const at::Tensor& own : members) {
        if (own.sizes() == members[0].sizes() &&
            at::allclose(own.to(at::kDouble), members[0].to(at::kDouble), 1e-9, 1e-12, true)) {
          continue;
        }
        throw std::runtime_error("copies of " + tensor.name + " differ");
      }
      return members[0];
    }
    at::Tensor whole = at::empty(dims_at(tensor.shape, samples_), members[0].options());
    const Division& division = body_.divisions[static_cast<std::size_t>(placement.division)];
    for (std::size_t m = 0; m < count(); ++m) {
      std::int64_t first = 0, from = 0;
      for (const std::int64_t band : placement.bands) {
        const UnitRange own = division.range(m, band);
        whole.narrow(placement.axis, first + own.begin, own.size())
            .copy_(members[m].narrow(placement.axis, from, own.size()));
        first += band;
        from += own.size();
      }
      if (from != members[m].size(placement.axis)) {
        throw std::runtime_error("a part of " + tensor.name + " has another extent");
      }
    }
    return whole;
  }

  void begin(const TensorMap& leaves) {
    for (int id = 0; id < static_cast<int>(body_.forms.size()); ++id) {
      const auto leaf = leaves.find(form(id).tensor);
      if (form(id).from == kNone && leaf != leaves.end()) {
        value(id) = placed(leaf->second, form(id).placement);
      }
    }
  }

  /// Returns the form whose tensor a form shares.
  int holder(int id) const {
    while (form(id).from != kNone && forward_exchange(body_, id) == TeamExchange::kNothing) {
      id = form(id).from;
    }
    return id;
  }
  /// Returns the form to whose gradient a form's is added.
  int gradient_holder(int id) const {
    while (form(id).from != kNone &&
           backward_exchange(graph_, body_, id) == TeamExchange::kNothing) {
      id = form(id).from;
    }
    return id;
  }

  void forward(const TeamStep& step) {
    if (step.form == kNone) {
      for (int i = step.first; i <= step.last; ++i) compute(static_cast<std::size_t>(i));
      return;
    }
    const TeamForm& made = form(step.form);
    const at::Tensor whole =
        whole_of(value(holder(made.from)), form(made.from).placement, graph_.tensor(made.tensor));
    value(step.form) = placed(whole, made.placement);
  }

  OpSplit split_of(const TeamOp& op) const {
    if (op.split != kNone) {
      return splits_of(graph_, op.op)[static_cast<std::size_t>(op.split)];
    }
    OpSplit whole;
    whole.inputs.resize(op.inputs.size());
    whole.outputs.resize(op.outputs.size());
    return whole;
  }

  double part(const TeamOp& op, std::size_t m) const {
    return op.division == kNone ? 1
                                : body_.divisions[static_cast<std::size_t>(op.division)].part(m);
  }

  SplitMember member_of(const TeamOp& op, const OpSplit& split, std::size_t m) {
    SplitMember member;
    if (op.division != kNone) {
      const Division& division = body_.divisions[static_cast<std::size_t>(op.division)];
      member.units = division.range(m, split.units);
    }
    member.op = member_op(graph_.op(op.op), split, member.units.size());
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == kNone) {
        member.in.emplace_back();
        continue;
      }
      const at::Tensor& x = value(holder(op.inputs[i])).at(m);
      member.in.push_back(leaf_of(renumbered(x, split, static_cast<int>(i), member.units.size()),
                                  has_gradient(graph_.tensor(form(op.inputs[i]).tensor))));
    }
    return member;
  }

  void compute(std::size_t index) {
    const TeamOp& op = body_.ops[index];
    const OpSplit split = split_of(op);
    Run& run = runs_[index];
    run.together = !split.inside.empty();
    for (std::size_t m = 0; m < count(); ++m) run.members.push_back(member_of(op, split, m));
    if (graph_.op(op.op).type == "Dropout") {
      drop(op, run);
    } else {
      run_split_members(split, run.members);
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      if (op.outputs[i] == kNone) continue;
      for (std::size_t m = 0; m < count(); ++m) {
        at::Tensor& out = run.members[m].out.at(i);
        if (split.outputs[i].kind == Kind::kMean) out = out * part(op, m);
        value(op.outputs[i]).push_back(out.detach());
      }
    }
  }

  /// Each member drops what the whole operator would.
  void drop(const TeamOp& op, Run& run) {
    const Op& whole = graph_.op(op.op);
    const Tensor& data = graph_.tensor(whole.inputs[0]);
    Tensors in;
    for (const at::Tensor& x : run.members[0].in) in.push_back(leaf_of(x, false));
    in[0] = at::ones(dims_at(data.shape, samples_), at::kDouble);
    const Tensors masks = run_kernel(whole, in, random_source(graph_, whole, samples_));
    for (std::size_t m = 0; m < count(); ++m) {
      SplitMember& member = run.members[m];
      for (std::size_t i = 0; i < op.outputs.size(); ++i) {
        member.out.emplace_back();
        if (op.outputs[i] == kNone) continue;
        const TeamPlacement& placement = form(op.outputs[i]).placement;
        const at::Tensor mask =
            placement.kind == Kind::kPart ? part_of(masks[i], placement, m) : masks[i];
        member.out[i] = i == 0 ? member.in[0] * mask : mask;
      }
    }
  }

  void seed() {
    for (const TensorId id : leaving_tensors(graph_, ops_)) {
      if (!has_gradient(graph_.tensor(id))) continue;
      for (int f = 0; f < static_cast<int>(body_.forms.size()); ++f) {
        if (form(f).tensor != id || form(f).placement != TeamPlacement()) continue;
        const at::Tensor& whole = value(holder(f)).at(0);
        add(f, Tensors(count(), seed_for(graph_, id, whole)));
        break;
      }
    }
  }

  void add(int id, const Tensors& members) {
    Tensors& sum = gradient(gradient_holder(id));
    sum.resize(count());
    for (std::size_t m = 0; m < count(); ++m) add_to(sum[m], members[m]);
  }

  void backward(const TeamStep& step) {
    if (step.form != kNone) return exchange_gradient(step.form);
    for (int i = step.last; i >= step.first; --i) differentiate(static_cast<std::size_t>(i));
  }

  /// Returns what the members have of a gradient; where an operator gave none, zeros.
  Tensors filled_gradient(int id) {
    Tensors members = gradient(id);
    members.resize(count());
    for (std::size_t m = 0; m < count(); ++m) {
      if (members[m].defined()) continue;
      members[m] = at::zeros_like(value(holder(id)).at(m), at::kDouble);
    }
    return members;
  }

  void exchange_gradient(int id) {
    const TeamForm& made = form(id);
    const at::Tensor whole =
        whole_of(filled_gradient(id), gradient_of(made.placement), graph_.tensor(made.tensor));
    add(made.from, placed(whole, gradient_of(form(made.from).placement)));
  }

  void differentiate(std::size_t index) {
    const TeamOp& op = body_.ops[index];
    Run& run = runs_[index];
    if (run.together) return differentiate_together(op, run);
    for (std::size_t m = 0; m < count(); ++m) {
      keep_gradients(op, m, go_back(run.members[m].in, run.members[m].out, seeds(op, m)));
    }
  }

  Tensors seeds(const TeamOp& op, std::size_t m) {
    Tensors own;
    for (const int output : op.outputs) {
      own.emplace_back();
      if (output == kNone) continue;
      const Tensors& all = gradient(gradient_holder(output));
      if (!all.empty()) own.back() = all[m];
    }
    return own;
  }

  /// Members that met have one graph. Of an output that all have, each has the whole gradient.
  void differentiate_together(const TeamOp& op, Run& run) {
    Tensors in, out, all;
    for (std::size_t m = 0; m < count(); ++m) {
      const Tensors own = seeds(op, m);
      for (std::size_t i = 0; i < own.size(); ++i) {
        const bool again = m > 0 && form(op.outputs[i]).placement.kind == Kind::kCopy;
        out.push_back(run.members[m].out[i]);
        all.push_back(again ? at::Tensor() : own[i]);
      }
      in.insert(in.end(), run.members[m].in.begin(), run.members[m].in.end());
    }
    const Tensors gradients = go_back(in, out, all);
    const auto width = static_cast<std::ptrdiff_t>(op.inputs.size());
    for (std::size_t m = 0; m < count(); ++m) {
      const auto first = gradients.begin() + static_cast<std::ptrdiff_t>(m) * width;
      keep_gradients(op, m, Tensors(first, first + width));
    }
  }

  void keep_gradients(const TeamOp& op, std::size_t m, const Tensors& gradients) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == kNone || !gradients[i].defined()) continue;
      Tensors own(count());
      own[m] = gradients[i];
      add(op.inputs[i], own);
    }
  }

  TensorMap whole_values() {
    TensorMap whole;
    for (int id = 0; id < static_cast<int>(body_.forms.size()); ++id) {
      const Tensors& members = value(holder(id));
      const at::Tensor own = whole_of(members, form(id).placement, graph_.tensor(form(id).tensor));
      whole.emplace(form(id).tensor, own);
    }
    return whole;
  }

  TensorMap whole_gradients(bool parameters) {
    TensorMap whole;
    for (int id = 0; id < static_cast<int>(body_.forms.size()); ++id) {
      const Tensor& tensor = graph_.tensor(form(id).tensor);
      const bool inside =
          tensor.producer != kNone && std::binary_search(ops_.begin(), ops_.end(), tensor.producer);
      if (form(id).from != kNone || inside || !has_gradient(tensor)) continue;
      if ((tensor.kind == TensorKind::kParameter) != parameters) continue;
      whole[form(id).tensor] =
          whole_of(filled_gradient(id), gradient_of(form(id).placement), tensor);
    }
    return whole;
  }

  /// Returns the gradients that leave a micro-batch, and drops all but the parameters'.
  TensorMap take_gradients() {
    TensorMap leaving = whole_gradients(false);
    for (std::size_t id = 0; id < gradients_.size(); ++id) {
      if (graph_.tensor(body_.forms[id].tensor).kind != TensorKind::kParameter) {
        gradients_[id].clear();
      }
    }
    return leaving;
  }

  const Graph& graph_;
  const TeamBody& body_;
  std::int64_t samples_;
  std::vector<OpId> ops_;
  std::vector<Tensors> values_, gradients_;  // by form and member
  std::vector<Run> runs_;                    // by operator
};

}  // namespace

TrainedStep run_team(const Graph& graph, const TeamBody& body, const std::vector<TensorMap>& leaves,
                     std::int64_t samples) {
  return Team(graph, body, samples).run(leaves);
}

}  // namespace agpcs::testing
