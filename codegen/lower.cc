// SPDX-License-Identifier: Apache-2.0
#include "codegen/lower.h"

#include "codegen/stage_program.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_body.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/program_memory.h"
#include "ir/strategy/segments.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/state_parts.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

namespace agpcs {
namespace {

/// Numbers the ranks in the cluster's device order.
std::map<DeviceId, int> number_ranks(const Cluster& cluster, const Strategy& strategy, Ranks with) {
  std::map<DeviceId, int> ranks;
  for (DeviceId id = 0; id < cluster.device_count() && with == Ranks::kAll; ++id) ranks[id] = 0;
  for (const StageSpec& spec : strategy.stages) {
    for (const DeviceId device : all_devices(spec)) ranks[device] = 0;
  }
  int next = 0;
  for (auto& [device, rank] : ranks) rank = next++;
  return ranks;
}

std::vector<OpId> ops_of_stage(const Graph& graph, const Strategy& strategy, int stage) {
  std::vector<OpId> ops;
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    if (strategy.stage_of[static_cast<std::size_t>(op)] == stage) ops.push_back(op);
  }
  return ops;
}

/// Writes what segments of stage `index` do. `segments` is made for the first that needs it.
void write_segments(const Graph& graph, const Strategy& strategy, std::size_t index,
                    std::optional<Segments>& segments, PlanStage& stage) {
  const Recomputation& recompute = strategy.stages[index].recompute;
  stage.recompute = recompute && recompute.again;
  stage.activations_in_host = recompute && recompute.in_host;
  if (recompute.segments < 2) return;
  const std::vector<OpId> ops = ops_of_stage(graph, strategy, static_cast<int>(index));
  if (!segments) segments.emplace(graph);
  const std::vector<std::size_t> ends = segments->ends(ops, recompute);
  if (ends.size() == 1 && ends.front() == ops.size()) return;
  std::size_t first = 0;
  for (const std::size_t end : ends) {
    stage.segments.push_back(static_cast<std::int64_t>(end - first));
    first = end;
  }
}

std::vector<PlanStage> lower_stages(const Graph& graph, const Cluster& cluster,
                                    const Strategy& strategy, std::int64_t batch,
                                    const std::map<DeviceId, int>& ranks) {
  std::vector<PlanStage> stages;
  std::optional<Segments> segments;
  for (const StageSpec& spec : strategy.stages) {
    PlanStage stage;
    stage.name = fmt::format("s{}", stages.size());
    for (const DeviceId device : spec.devices) {
      stage.ranks.push_back(ranks.at(device));
      stage.devices.push_back(cluster.device_name(device));
    }
    stage.body = spec.body;
    stage.bodies = spec.bodies;
    for (const std::vector<DeviceId>& further : spec.further) {
      stage.further_ranks.emplace_back();
      stage.further_devices.emplace_back();
      for (const DeviceId device : further) {
        stage.further_ranks.back().push_back(ranks.at(device));
        stage.further_devices.back().push_back(cluster.device_name(device));
      }
    }
    stage.samples = spec.shares;
    if (batch % strategy.micro_batches != 0) stage.odd = stage.ranks[odd_replica(spec)];
    write_segments(graph, strategy, stages.size(), segments, stage);
    stage.state_in_host = spec.state_in_host;
    stage.operators = runs_of_stage(graph, strategy.stage_of, static_cast<int>(stages.size()));
    stages.push_back(std::move(stage));
  }
  return stages;
}

/// Adds a stage with those of `ranks` that no stage has, unless all have work.
void add_idle_stage(const Cluster& cluster, const Strategy& strategy, std::map<DeviceId, int> ranks,
                    Plan& plan) {
  for (const StageSpec& spec : strategy.stages) {
    for (const DeviceId device : all_devices(spec)) ranks.erase(device);
  }
  if (ranks.empty()) return;
  const auto index = static_cast<int>(plan.stages.size());
  PlanStage stage;
  stage.name = fmt::format("s{}", index);
  for (const auto& [device, rank] : ranks) {
    stage.ranks.push_back(rank);
    stage.devices.push_back(cluster.device_name(device));
  }
  stage.samples.resize(stage.ranks.size(), 0);
  plan.stages.push_back(std::move(stage));
  Program& program = plan.programs.emplace_back(Program{index, {}});
  if (plan.training.optimizer.clips()) {
    program.instructions.push_back({{Opcode::kNorm, -1, -1}, {}});
  }
  program.instructions.push_back({{Opcode::kReport, -1, -1}, {}});
}

/// Needs: the bucket is not empty, and its parameters have one type.
Result<PlanBucket> lower_bucket(const Graph& graph, const Bucket& bucket, std::size_t index,
                                const Training& training) {
  PlanBucket lowered;
  lowered.name = fmt::format("b{}", index);
  lowered.stage = bucket.stage;
  lowered.algorithm = bucket.algorithm;
  lowered.flow = bucket.flow;
  lowered.shared_with = bucket.shared_with;
  lowered.parts = bucket.parts;
  lowered.state = bucket.state;
  if (bucket.parameters.empty()) {
    return internal_error(fmt::format("strategy: bucket {} is empty", index));
  }
  lowered.type = held_type(graph.tensor(bucket.parameters.front()).type, training.precision);
  for (const TensorId id : bucket.parameters) {
    const Tensor& parameter = graph.tensor(id);
    if (held_type(parameter.type, training.precision) != lowered.type) {
      return internal_error(fmt::format("strategy: bucket {} of {} holds '{}' of {}", index,
                                        name_of(lowered.type), parameter.name,
                                        name_of(parameter.type)));
    }
    lowered.members.push_back({parameter.name, elements_at(parameter.shape, 1)});
  }
  return lowered;
}

/// Divides the state of the stages whose replicas do so and whose buckets have no parts yet: by
/// their devices' speed and by the memory that the step leaves them.
void divide_states(const Graph& graph, const Cluster& cluster, const Strategy& strategy,
                   const Timetable& timetable, Plan& plan) {
  std::optional<StageMemoryModel> model;
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    const int stage = static_cast<int>(s);
    if (!divides_state(spec, plan.training) || has_own_parts(strategy, stage)) continue;
    if (!model) model.emplace(graph, plan.training);
    std::vector<PlanBucket*> buckets;
    const StateLevel level = divided_by(spec, plan.training);
    DividedState state(plan.training.optimizer, level, spec.state_in_host);
    std::int64_t sums = 0;  // bytes of gradients that are divided
    for (PlanBucket& bucket : plan.buckets) {
      if (bucket.stage != stage || bucket.is_shared()) continue;
      buckets.push_back(&bucket);
      bucket.state = level;
      state.add(bucket.elements(), bucket.type, bucket.members.size());
      if (bucket.divides_gradients()) sums += bucket.bytes();
    }
    // A program's memory does not depend on what collectives there are.
    const ProgramMemory program(stage_program(plan, timetable, stage));
    const StageParts parts =
        parts_of_stage(plan, graph, stage, ops_of_stage(graph, strategy, stage));
    std::vector<StateOwner> owners;
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      StageMemory memory = model->of(parts, spec.shares[i]);
      memory.gradients += sums;
      if (spec.state_in_host) move_state_to_host(plan.training, memory);
      const std::int64_t peak = program.peak_bytes(memory);
      owners.push_back(state.owner(cluster.kind_of(spec.devices[i]), peak, spec.devices.size()));
    }
    const std::vector<std::int64_t> owned = divide_state(state.elements(), owners);
    for (PlanBucket* const bucket : buckets) {
      bucket->parts = bucket_parts(bucket->elements(), owned);
    }
  }
}

}  // namespace

Result<Plan> lower(const Graph& graph, const Cluster& cluster, const Training& training,
                   const Strategy& strategy, const MadeBy& made_by, Ranks with) {
  Plan plan;
  plan.made_by = made_by;
  plan.model = graph.called();
  plan.model_digest = digest_of(print_graph(graph));
  plan.dims = graph.dims;
  plan.frozen = graph.frozen;
  plan.trained = graph.trained;
  plan.fused = graph.fused_types;
  plan.cluster = cluster.name;
  plan.cluster_digest = digest_of(print_cluster(cluster));
  plan.training = training;
  plan.micro_batches = strategy.micro_batches;
  plan.schedule = strategy.schedule;
  const std::map<DeviceId, int> ranks = number_ranks(cluster, strategy, with);
  plan.stages = lower_stages(graph, cluster, strategy, training.batch, ranks);
  for (const TeamBody& body : strategy.bodies) {
    plan.bodies.push_back(
        plan_body(graph, body, training.precision, fmt::format("t{}", plan.bodies.size())));
  }
  plan.cuts = cuts_between(graph, strategy.stage_of, training.precision);
  plan.flows = strategy.flows;
  for (std::size_t f = 0; f < plan.flows.size(); ++f) plan.flows[f].name = fmt::format("f{}", f);
  for (const Bucket& bucket : strategy.buckets) {
    AGPCS_TRY(PlanBucket lowered, lower_bucket(graph, bucket, plan.buckets.size(), training));
    plan.buckets.push_back(std::move(lowered));
  }
  const Timetable timetable(plan, in_flight_by_stage(strategy));
  divide_states(graph, cluster, strategy, timetable, plan);
  for (int stage = 0; stage < plan.round_size(); ++stage) {
    std::vector<BucketUse> uses;
    if (divides_parameters(plan, stage)) {
      uses = parts_of_stage(plan, graph, stage, ops_of_stage(graph, strategy, stage)).uses;
    }
    plan.programs.push_back(stage_program(plan, timetable, stage, uses));
  }
  add_idle_stage(cluster, strategy, ranks, plan);
  return plan;
}

}  // namespace agpcs
