// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/team/team_stage.h"

#include "ir/plan/body/body.h"
#include "ir/strategy/plan_body.h"
#include "ir/team/blocks.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

Status check_seat(const TeamSeat& seat, const std::vector<OpId>& ops) {
  const std::size_t members = seat.body->members();
  if (seat.ranks.size() != members || seat.member >= members) {
    return invalid_input(fmt::format("member {} of a team of {} ranks, whose body has {} members",
                                     seat.member, seat.ranks.size(), members));
  }
  const bool same = std::equal(ops.begin(), ops.end(), seat.body->ops.begin(), seat.body->ops.end(),
                               [](OpId id, const TeamOp& op) { return id == op.op; });
  if (same) return {};
  return invalid_input(
      fmt::format("the team's body has {} operators, and not those of the stage, which has {}",
                  seat.body->ops.size(), ops.size()));
}

/// Refuses what a team does not do yet.
Status check_plan(const Plan& plan, int index) {
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(index)];
  const auto refused = [&](std::string_view what) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("stage {}: a team does not {}", stage.name, what));
  };
  if (stage.recompute) return refused("recompute");
  if (plan.parts_backward()) return refused("part its backward passes");
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_of(index) && bucket.is_sharded()) return refused("divide state among replicas");
  }
  return {};
}

}  // namespace

TeamStage::TeamStage(const Graph& graph, const TeamSeat& seat, at::Device device)
    : body_(*seat.body),
      seat_{&body_, seat.member, seat.ranks, seat.over},
      context_{graph,
               body_,
               device,
               TeamLink(seat_),
               shared_forms(graph, body_),
               {},
               Tensors(body_.forms.size())},
      inputs_(body_inputs(graph, body_)) {}

Result<std::unique_ptr<TeamStage>> TeamStage::make(const Graph& graph, const TeamSeat& seat,
                                                   const std::vector<OpId>& ops,
                                                   at::Device device) {
  AGPCS_RETURN_IF_ERROR(check_seat(seat, ops));
  AGPCS_RETURN_IF_ERROR(verify_team_body(graph, *seat.body));
  std::unique_ptr<TeamStage> stage(new TeamStage(graph, seat, device));
  AGPCS_RETURN_IF_ERROR(stage->find_held());
  return stage;
}

Result<std::unique_ptr<TeamStage>> TeamStage::make(const Graph& graph, const Plan& plan, int rank,
                                                   const std::vector<OpId>& ops,
                                                   at::Device device) {
  const int index = plan.stage_of_rank(rank);
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(index)];
  AGPCS_RETURN_IF_ERROR(check_plan(plan, index));
  const auto replica = static_cast<std::size_t>(replica_of(stage, rank));
  AGPCS_TRY(const TeamBody body,
            team_body_of(graph, plan.bodies[static_cast<std::size_t>(stage.body_of(replica))], ops,
                         plan.training.precision));
  return make(graph, {&body, member_of(stage, rank), stage.members(replica), {}}, ops, device);
}

/// A parameter or state lies as its first form says. Of those without a gradient, one that is read
/// in several forms is a copy, and so are integers, because what is saved counts in words.
Status TeamStage::find_held() {
  for (const TeamForm& form : context_.body.forms) {
    const Tensor& tensor = context_.graph.tensor(form.tensor);
    const bool weight = tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kState;
    if (!weight || form.from != kNone) continue;
    const bool copied = !is_floating(tensor.type);
    const auto [held, added] =
        context_.held.emplace(form.tensor, copied ? TeamPlacement() : form.placement);
    if (copied || added || held->second == form.placement) continue;
    if (tensor.kind == TensorKind::kState) {
      return invalid_input(fmt::format("state '{}' is in two forms", tensor.name));
    }
    held->second = {};
  }
  return {};
}

Status TeamStage::prepare(std::int64_t samples) {
  AGPCS_TRY(TeamCode code,
            TeamCode::compile(context_.graph, context_.body, member(), samples, context_.device));
  codes_.emplace(samples, std::move(code));
  return {};
}

std::int64_t TeamStage::elements(TensorId id) const {
  const std::vector<std::int64_t> dims = context_.link.dims_of(
      context_.held.at(id), member(), dims_at(context_.graph.tensor(id).shape, 1));
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

at::Tensor TeamStage::part_of(TensorId id, const at::Tensor& whole) const {
  const TeamPlacement& held = context_.held.at(id);
  if (held.kind != Placement::Kind::kPart) return whole;
  return context_.link.part_of(whole, held).contiguous().clone();
}

bool TeamStage::counts(TensorId id) const {
  return member() == 0 || context_.held.at(id).kind == Placement::Kind::kPart;
}

void TeamStage::describe(TensorId id, StateItem& item) const {
  const TeamPlacement& held = context_.held.at(id);
  if (held.kind != Placement::Kind::kPart) return;
  const std::vector<std::int64_t> dims = dims_at(context_.graph.tensor(id).shape, 1);
  const auto behind = dims.begin() + held.axis + 1;
  const std::int64_t width =
      std::accumulate(behind, dims.end(), std::int64_t{1}, std::multiplies<>());
  item.period = *(behind - 1) * width;
  for (const UnitRange& range : part_elements(body_.divisions, held, member())) {
    item.runs.push_back({range.begin * width, range.end * width});
  }
}

void TeamStage::begin_step(std::size_t micro_batches) {
  context_.step_gradients.assign(context_.body.forms.size(), {});
  passes_.resize(micro_batches);
  for (std::unique_ptr<TeamPass>& pass : passes_) pass = std::make_unique<TeamPass>(context_);
}

void TeamStage::forward(std::size_t micro_batch, std::int64_t samples, Values& values,
                        const StageCode::Run& run) {
  passes_[micro_batch]->forward(codes_.at(samples), values, run);
}

Status TeamStage::evaluate(std::int64_t samples, const std::vector<TensorId>& keep, Values& values,
                           const StageCode::Run& run) {
  if (codes_.count(samples) == 0) AGPCS_RETURN_IF_ERROR(prepare(samples));
  Values read;
  for (const TensorId id : keep) {
    if (const auto found = values.find(id); found != values.end()) read.insert(*found);
  }
  const at::NoGradGuard no_gradients;
  TeamPass(context_).forward(codes_.at(samples), values, run, keep);
  values.merge(read);
  context_.link.settle();
  return {};
}

void TeamStage::backward(std::size_t micro_batch, const Values& gradients) {
  passes_[micro_batch]->backward(gradients);
}

void TeamStage::step_end(const Values& parameters) {
  for (const TeamStep& step : context_.body.step_end) {
    at::Tensor& own = context_.step_gradients[static_cast<std::size_t>(step.form)];
    at::Tensor made = context_.exchange_gradient(step.form, std::move(own), 1);
    const int sum =
        context_.shared.gradient[static_cast<std::size_t>(context_.form(step.form).from)];
    if (context_.form(sum).from == kNone) {
      add_to_leaf(parameters.at(context_.form(sum).tensor), std::move(made));
    } else {
      add_gradient(context_.step_gradients[static_cast<std::size_t>(sum)], made);
    }
  }
  context_.link.settle();
}

}  // namespace agpcs
