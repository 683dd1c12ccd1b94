// SPDX-License-Identifier: Apache-2.0
#include "codegen/lower.h"

#include "codegen/stage_program.h"
#include "ir/plan_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

namespace agpcs {
namespace {

/// Ranks follow the cluster's device order among the devices that the strategy uses.
std::map<DeviceId, int> number_ranks(const Strategy& strategy) {
  std::map<DeviceId, int> ranks;
  for (const StageSpec& spec : strategy.stages) {
    for (const DeviceId device : spec.devices) ranks[device] = 0;
  }
  int next = 0;
  for (auto& [device, rank] : ranks) rank = next++;
  return ranks;
}

std::vector<PlanStage> lower_stages(const Graph& graph, const Cluster& cluster,
                                    const Strategy& strategy) {
  const std::map<DeviceId, int> ranks = number_ranks(strategy);
  std::vector<PlanStage> stages;
  for (const StageSpec& spec : strategy.stages) {
    PlanStage stage;
    stage.name = fmt::format("s{}", stages.size());
    for (const DeviceId device : spec.devices) {
      stage.ranks.push_back(ranks.at(device));
      stage.devices.push_back(cluster.device_name(device));
    }
    stage.samples = spec.shares;
    stage.recompute = spec.recompute;
    stage.operators = runs_of_stage(graph, strategy.stage_of, static_cast<int>(stages.size()));
    stages.push_back(std::move(stage));
  }
  return stages;
}

/// Needs: the bucket is not empty, its parameters have one type.
Result<PlanBucket> lower_bucket(const Graph& graph, const Bucket& bucket, std::size_t index,
                                const Training& training) {
  PlanBucket lowered;
  lowered.name = fmt::format("b{}", index);
  lowered.stage = bucket.stage;
  lowered.algorithm = bucket.algorithm;
  lowered.flow = bucket.flow;
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

}  // namespace

Result<Plan> lower(const Graph& graph, const Cluster& cluster, const Training& training,
                   const Strategy& strategy, const MadeBy& made_by) {
  Plan plan;
  plan.made_by = made_by;
  plan.model = graph.name;
  plan.model_digest = digest_of(print_graph(graph));
  plan.dims = graph.dims;
  plan.cluster = cluster.name;
  plan.cluster_digest = digest_of(print_cluster(cluster));
  plan.training = training;
  plan.micro_batches = strategy.micro_batches;
  plan.schedule = strategy.schedule;
  plan.stages = lower_stages(graph, cluster, strategy);
  plan.cuts = cuts_between(graph, strategy.stage_of, training.precision);
  plan.flows = strategy.flows;
  for (std::size_t f = 0; f < plan.flows.size(); ++f) plan.flows[f].name = fmt::format("f{}", f);
  for (const Bucket& bucket : strategy.buckets) {
    AGPCS_TRY(PlanBucket lowered, lower_bucket(graph, bucket, plan.buckets.size(), training));
    plan.buckets.push_back(std::move(lowered));
  }
  const Timetable timetable(plan);
  for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
    plan.programs.push_back(stage_program(plan, timetable, stage));
  }
  return plan;
}

}  // namespace agpcs
