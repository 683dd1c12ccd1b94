// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/team/team_run.h"

#include "ir/team/blocks.h"
#include "runtime/torch/team/team_stage.h"
#include "tests/system/executor/team/member_threads.h"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>

namespace agpcs::testing {
namespace {

/// What one member has after its passes.
struct MemberStep {
  std::vector<TensorMap> values, gradients;
  TensorMap parameter_gradients;
};

std::unique_ptr<TeamStage> stage_of(const Graph& graph, const TeamSeat& seat,
                                    std::int64_t samples) {
  std::vector<OpId> ops;
  for (const TeamOp& op : seat.body->ops) ops.push_back(op.op);
  Result<std::unique_ptr<TeamStage>> stage = TeamStage::make(graph, seat, ops, at::kCPU);
  if (!stage.ok()) throw std::runtime_error(stage.status().message());
  const Status prepared = (*stage)->prepare(samples);
  if (!prepared.ok()) throw std::runtime_error(prepared.message());
  return *std::move(stage);
}

bool is_weight(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kState;
}

TeamStage::Values weights_of(const Graph& graph, const TeamStage& stage, const TensorMap& leaves) {
  TeamStage::Values weights;
  for (const TensorId id : stage.inputs()) {
    const Tensor& tensor = graph.tensor(id);
    if (!is_weight(tensor)) continue;
    weights[id] = leaf_of(stage.part_of(id, leaves.at(id)), has_gradient(tensor));
    if (weights[id].numel() != stage.elements(id)) throw std::runtime_error(tensor.name);
  }
  return weights;
}

MemberStep run_member(const Graph& graph, TeamStage& stage, const std::vector<TensorMap>& leaves,
                      std::int64_t samples) {
  MemberStep step;
  stage.begin_step(leaves.size());
  const TeamStage::Values weights = weights_of(graph, stage, leaves[0]);
  StageCode::Run run;
  run.seed = kDropoutSeed;
  for (std::size_t m = 0; m < leaves.size(); ++m) {
    TeamStage::Values values = weights, received, seeds;
    for (const TensorId id : stage.inputs()) {
      const Tensor& tensor = graph.tensor(id);
      if (is_weight(tensor)) continue;
      values[id] = leaf_of(leaves[m].at(id), has_gradient(tensor));
      if (has_gradient(tensor)) received[id] = values[id];
    }
    stage.forward(m, samples, values, run);
    TensorMap& leaving = step.values.emplace_back();
    for (const auto& [id, x] : values) {
      leaving[id] = x.detach();
      if (has_gradient(graph.tensor(id))) seeds[id] = seed_for(graph, id, x);
    }
    stage.backward(m, seeds);
    TensorMap& gradients = step.gradients.emplace_back();
    for (const auto& [id, x] : received) gradients[id] = x.grad();
  }
  stage.step_end(weights);
  for (const auto& [id, x] : weights) {
    if (!has_gradient(graph.tensor(id))) continue;
    step.parameter_gradients[id] = x.grad().defined() ? x.grad() : at::zeros_like(x);
  }
  return step;
}

TensorMap of_copies(const TeamBody& body, const std::vector<const TensorMap*>& members) {
  TensorMap whole;
  for (const auto& [id, x] : *members[0]) {
    Tensors own;
    for (const TensorMap* member : members) {
      own.push_back(member->at(id).defined() ? member->at(id) : at::zeros({0}));
    }
    if (x.defined()) whole[id] = joined(body, {}, own, x.sizes().vec());
  }
  return whole;
}

}  // namespace

at::Tensor joined(const TeamBody& body, const TeamPlacement& placement, const Tensors& members,
                  const std::vector<std::int64_t>& dims) {
  if (placement.kind != Placement::Kind::kPart) {
    for (const at::Tensor& own : members) {
      if (own.sizes() != members[0].sizes() ||
          !at::allclose(own.to(at::kDouble), members[0].to(at::kDouble), 1e-9, 1e-12, true)) {
        throw std::runtime_error("copies differ");
      }
    }
    return members[0];
  }
  const at::Tensor whole = at::empty(dims, members[0].options().requires_grad(false));
  for (std::size_t m = 0; m < members.size(); ++m) {
    const at::Tensor own = members[m].view(member_dims(body.divisions, placement, m, dims));
    std::int64_t from = 0;
    for (const UnitRange& range : part_elements(body.divisions, placement, m)) {
      whole.narrow(placement.axis, range.begin, range.size())
          .copy_(own.narrow(placement.axis, from, range.size()));
      from += range.size();
    }
  }
  return whole;
}

TrainedStep run_team(const Graph& graph, const TeamBody& body, const std::vector<TensorMap>& leaves,
                     std::int64_t samples) {
  MemberThreads threads(body.members(), &body);
  std::vector<MemberStep> members(body.members());
  threads.run([&](std::size_t m) {
    const std::unique_ptr<TeamStage> stage = stage_of(graph, threads.seat(m), samples);
    members[m] = run_member(graph, *stage, leaves, samples);
  });
  TrainedStep step;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    std::vector<const TensorMap*> values, gradients;
    for (const MemberStep& member : members) {
      values.push_back(&member.values[i]);
      gradients.push_back(&member.gradients[i]);
    }
    step.values.push_back(of_copies(body, values));
    step.gradients.push_back(of_copies(body, gradients));
  }
  for (const TeamForm& form : body.forms) {
    const auto found = members[0].parameter_gradients.find(form.tensor);
    if (form.from != kNone || found == members[0].parameter_gradients.end()) continue;
    Tensors own;
    for (const MemberStep& member : members) {
      own.push_back(member.parameter_gradients.at(form.tensor));
    }
    step.parameter_gradients[form.tensor] =
        joined(body, form.placement, own, dims_at(graph.tensor(form.tensor).shape, 1));
  }
  return step;
}

}  // namespace agpcs::testing
