// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/team/pass.h"

#include "runtime/torch/data/labels.h"
#include "runtime/torch/device/clock.h"
#include "runtime/torch/entry.h"
#include "runtime/torch/team/member.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

namespace agpcs {
namespace {

std::size_t at_form(int form) { return static_cast<std::size_t>(form); }

/// Returns whether nothing else has the memory of `x`.
bool is_alone(const at::Tensor& x) { return x.use_count() == 1 && x.storage().use_count() == 1; }

}  // namespace

// Where autograd goes back from: the results of a region that have gradients. They hold no values.
struct TeamPass::Roots {
  std::vector<int> forms;
  torch::autograd::edge_list edges;
};

void add_gradient(at::Tensor& sum, const at::Tensor& x) {
  if (x.defined()) sum = sum.defined() ? sum + x : x;
}

void add_to_leaf(const at::Tensor& leaf, at::Tensor x) {
  if (!x.defined()) return;
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = leaf.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(x);
  } else {
    gradient = is_alone(x) ? std::move(x) : x.clone();  // autograd may add to it in place
  }
}

at::Tensor TeamContext::exchange_gradient(int form, at::Tensor own, std::int64_t samples) {
  const at::NoGradGuard no_grad;
  const TeamForm& made = this->form(form);
  const Tensor& tensor = graph.tensor(made.tensor);
  const TeamPlacement from = gradient_of(made.placement);
  const TeamPlacement to = gradient_of(this->form(made.from).placement);
  const std::vector<std::int64_t> dims = dims_at(tensor.shape, samples);
  if (!own.defined()) {
    const auto options = at::TensorOptions().dtype(computed_type(tensor.type)).device(device);
    own = at::zeros(link.dims_of(from, link.member(), dims), options);
  }
  return link.exchange(std::move(own), from, to, dims);
}

TeamPass::TeamPass(TeamContext& context) : context_(context) {}
TeamPass::~TeamPass() = default;

void TeamPass::forward(const TeamCode& code, Values& values, const StageCode::Run& run,
                       const std::vector<TensorId>& keep) {
  code_ = &code;
  clock_ = run.clock;
  for (const TensorId id : keep) kept_[id] = at::Tensor();
  const std::size_t forms = context_.body.forms.size();
  for (Tensors* all : {&values_, &live_, &leaves_, &gradients_}) all->assign(forms, {});
  roots_.clear();
  roots_.resize(code.regions().size());
  outside_of_operators();
  begin(values);
  for (const TeamCode::Action& action : code.forward()) {
    if (action.form != kNone) {
      exchange(action);
    } else {
      run_region(static_cast<std::size_t>(action.region), run);
    }
  }
  std::vector<OpId> ops;
  for (const TeamOp& op : context_.body.ops) ops.push_back(op.op);
  for (const TensorId id : leaving_tensors(context_.graph, ops)) {
    values[id] = values_[at_form(context_.shared.value[at_form(leaving_form(context_.body, id))])];
  }
  values_.clear();
  for (auto& [id, whole] : kept_) {
    if (whole.defined()) values[id] = std::move(whole);
  }
  kept_.clear();
}

/// Takes what the body reads. Of a tensor without a gradient, each form is made of what is there.
void TeamPass::begin(Values& values) {
  const at::NoGradGuard no_grad;
  for (int id = 0; id < static_cast<int>(context_.body.forms.size()); ++id) {
    const TeamForm& form = context_.form(id);
    const auto found = form.from == kNone ? values.find(form.tensor) : values.end();
    if (found == values.end()) continue;
    const at::Tensor& x = found->second;
    const auto held = context_.held.find(form.tensor);
    const TeamPlacement& there = held == context_.held.end() ? TeamPlacement() : held->second;
    switch (exchange_between(there, form.placement)) {
      case TeamExchange::kNothing:
        values_[at_form(id)] = x;
        if (x.requires_grad()) leaves_[at_form(id)] = x;
        break;
      case TeamExchange::kTakePart:
        values_[at_form(id)] = context_.link.part_of(x, form.placement);
        break;
      default:
        values_[at_form(id)] = context_.link.member() == 0 ? x : at::zeros_like(x);
    }
  }
  values.clear();
}

void TeamPass::run_region(std::size_t region, const StageCode::Run& run) {
  const TeamCode::Region& own = code_->regions()[region];
  for (int i = own.first; i <= own.last; ++i) {
    const Op& op = code_->steps()[static_cast<std::size_t>(i)].op;
    try {
      run_step(static_cast<std::size_t>(i), run);
    } catch (const std::exception& error) {
      throw KernelError(fmt::format("node '{}' ({}): {}", op.name, op.type, brief(error)));
    }
  }
  for (const int form : own.results) {
    const at::Tensor& x = live_[at_form(form)];
    if (!x.defined()) continue;
    if (x.requires_grad()) {
      roots_[region].forms.push_back(form);
      roots_[region].edges.push_back(torch::autograd::impl::gradient_edge(x));
    }
    values_[at_form(form)] = x.detach();
  }
  live_.assign(live_.size(), {});
}

void TeamPass::run_step(std::size_t index, const StageCode::Run& run) {
  const TeamCode::Step& step = code_->steps()[index];
  const TeamOp& op = context_.body.ops[index];
  if (clock_ != nullptr) clock_->begin(op.op);
  Tensors outputs = outputs_of(step, op, run);
  if (clock_ != nullptr) clock_->await_backward(op.op, outputs);
  for (std::size_t i = 0; i < op.outputs.size() && i < outputs.size(); ++i) {
    if (op.outputs[i] == kNone) continue;
    at::Tensor& out = outputs[i];
    if (step.split.outputs[i].kind == Placement::Kind::kMean) out = out * step.mean_part;
    live_[at_form(op.outputs[i])] = std::move(out);
    keep_whole(op.outputs[i]);
  }
  free(step.dead);
}

/// Keeps what was just made, if the caller asks for it.
void TeamPass::keep_whole(int form) {
  const auto kept = kept_.find(context_.form(form).tensor);
  if (kept == kept_.end()) return;
  const at::NoGradGuard no_grad;
  kept->second = context_.link.exchange(live_[at_form(form)].detach(),
                                        context_.form(form).placement, TeamPlacement(),
                                        dims_at(context_.tensor_of(form).shape, code_->samples()));
}

Tensors TeamPass::outputs_of(const TeamCode::Step& step, const TeamOp& op,
                             const StageCode::Run& run) {
  OpCall call{step.op,
              Tensors(op.inputs.size()),
              &step.host,
              step.random,
              run.labels == nullptr ? nullptr : run.labels->labels_per_sample(op.op),
              run.evaluates};
  call.random.seed = run.seed;
  call.random.first_sample = run.first_sample;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] == kNone) continue;
    call.in[i] = step.constants[i].defined() ? step.constants[i]
                                             : renumbered(read(op.inputs[i]), step.split,
                                                          static_cast<int>(i), step.units.size());
  }
  Tensors outputs = run_member(step.split, step.units, call, &context_.link);
  // In training, batch norm returns new running statistics as outputs 1 and 2 for inputs 3 and 4.
  if (step.op.type == "BatchNormalization" && outputs.size() >= 3 && run.new_state) {
    run.new_state(step.op.inputs[3], outputs[1]);
    run.new_state(step.op.inputs[4], outputs[2]);
  }
  return outputs;
}

at::Tensor TeamPass::read(int form) {
  const int variable = context_.shared.variable[at_form(form)];
  at::Tensor& live = live_[at_form(variable)];
  if (live.defined()) return live;
  const at::Tensor& x = values_[at_form(context_.shared.value[at_form(variable)])];
  if (!x.defined())
    throw KernelError(fmt::format("'{}' is not there", context_.tensor_of(form).name));
  if (leaves_[at_form(variable)].defined()) {
    live = x;
  } else if (has_gradient(context_.tensor_of(form)) && at::GradMode::is_enabled()) {
    live = enter(x, [this, variable](const at::Tensor& gradient) {
      add(context_.shared.gradient[at_form(variable)], gradient);
    });
    if (clock_ != nullptr) clock_->leave_out(live);
  } else {
    live = x.detach();
  }
  return live;
}

void TeamPass::outside_of_operators() {
  if (clock_ != nullptr) clock_->begin(kNone);
}

void TeamPass::exchange(const TeamCode::Action& action) {
  outside_of_operators();
  const at::NoGradGuard no_grad;
  const TeamForm& made = context_.form(action.form);
  const TeamPlacement& from = context_.form(made.from).placement;
  const Tensor& tensor = context_.graph.tensor(made.tensor);
  at::Tensor own = values_[at_form(context_.shared.value[at_form(made.from)])];
  free(action.dead);
  const bool view = tensor.kind == TensorKind::kParameter &&
                    exchange_between(from, made.placement) == TeamExchange::kTakePart;
  values_[at_form(action.form)] =
      view ? context_.link.part_of(own, made.placement)
           : context_.link.exchange(std::move(own), from, made.placement,
                                    dims_at(tensor.shape, code_->samples()));
}

void TeamPass::free(const std::vector<int>& dead) {
  for (const int form : dead) {
    values_[at_form(form)].reset();
    for (const int variable : context_.shared.variables[at_form(form)]) {
      live_[at_form(variable)].reset();
    }
  }
}

void TeamPass::backward(const Values& gradients) {
  outside_of_operators();
  for (const auto& [id, gradient] : gradients) {
    const int form = leaving_form(context_.body, id);
    if (form == kNone) continue;
    const std::vector<std::int64_t> dims =
        dims_at(context_.graph.tensor(id).shape, code_->samples());
    add(context_.shared.gradient[at_form(form)], gradient.view(dims));
  }
  for (const TeamCode::Action& action : code_->backward()) {
    if (action.form != kNone) {
      exchange_gradient(action.form);
    } else {
      go_back(static_cast<std::size_t>(action.region));
    }
  }
  leaves_.clear();
  gradients_.clear();
}

void TeamPass::add(int form, const at::Tensor& gradient) {
  if (leaves_[at_form(form)].defined()) {
    add_to_leaf(leaves_[at_form(form)], gradient);
  } else if (context_.tensor_of(form).kind == TensorKind::kParameter) {
    add_gradient(context_.step_gradients[at_form(form)], gradient);
  } else {
    add_gradient(gradients_[at_form(form)], gradient);
  }
}

void TeamPass::exchange_gradient(int form) {
  outside_of_operators();
  at::Tensor own = std::move(gradients_[at_form(form)]);
  add(context_.shared.gradient[at_form(context_.form(form).from)],
      context_.exchange_gradient(form, std::move(own), code_->samples()));
}

void TeamPass::go_back(std::size_t region) {
  const Roots roots = std::move(roots_[region]);
  roots_[region] = {};
  torch::autograd::edge_list edges;
  Tensors gradients;
  for (std::size_t i = 0; i < roots.forms.size(); ++i) {
    at::Tensor& sum = gradients_[at_form(roots.forms[i])];
    if (!sum.defined()) continue;
    edges.push_back(roots.edges[i]);
    gradients.push_back(std::move(sum));
  }
  if (edges.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(
      edges, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace agpcs
