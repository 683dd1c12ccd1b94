// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/strategy_of_plan.h"

#include "codegen/lower.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/plan/text.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/plan_body.h"
#include "ir/strategy/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

Result<std::vector<DeviceId>> devices_named(const std::vector<std::string>& names,
                                            const Cluster& cluster) {
  std::vector<DeviceId> devices;
  for (const std::string& name : names) {
    devices.push_back(cluster.find_device(name));
    if (devices.back() != kNone) continue;
    return invalid_input(
        fmt::format("the plan's device '{}' is not in cluster '{}'", name, cluster.name));
  }
  return devices;
}

Result<StageSpec> stage_spec(const PlanStage& stage, const Cluster& cluster) {
  StageSpec spec;
  AGPCS_TRY(spec.devices, devices_named(stage.devices, cluster));
  for (const std::vector<std::string>& further : stage.further_devices) {
    AGPCS_TRY(std::vector<DeviceId> devices, devices_named(further, cluster));
    spec.further.push_back(std::move(devices));
  }
  spec.body = stage.body;
  spec.bodies = stage.bodies;
  spec.shares = stage.samples;
  spec.state_in_host = stage.state_in_host;
  const auto odd = std::find(stage.ranks.begin(), stage.ranks.end(), stage.odd);
  const auto at = static_cast<std::size_t>(odd - stage.ranks.begin());
  if (odd != stage.ranks.end() && at < spec.devices.size()) spec.odd = spec.devices[at];
  return spec;
}

/// `segments` is made for the first stage that needs it.
Result<Recomputation> read_recomputation(const PlanStage& stage, const Graph& graph,
                                         const std::vector<OpId>& ops,
                                         std::optional<Segments>& segments) {
  if (!stage.recompute && !stage.activations_in_host) return Recomputation{};
  std::optional<Recomputation> known = kWholeStage;
  if (!stage.segments.empty()) {
    if (!segments) segments.emplace(graph);
    known = segments->recomputation_of(ops, segment_ends(stage, ops.size()));
  }
  if (known) {
    known->again = stage.recompute;
    known->in_host = stage.activations_in_host;
    return *known;
  }
  return invalid_input(
      fmt::format("stage {} {} {} operators in segments that the planner does not make\n"
                  "  hint: replay the plan as it is, or compile one",
                  stage.name, stage.recompute ? "recomputes" : "has activations in hosts of",
                  print_samples(stage.segments)));
}

/// Reads what stages have in flight if it is not what the plan's schedule says.
void read_in_flight(const Plan& plan, Strategy& strategy) {
  if (plan.interleaves()) return;
  bool departs = false;
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const std::int64_t own = most_in_flight(plan.programs[s]);
    departs = departs || own != usual_in_flight(plan, static_cast<int>(s));
  }
  if (!departs) return;
  if (strategy.schedule == Schedule::kGPipe) strategy.schedule = Schedule::k1F1B;
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const std::int64_t own = most_in_flight(plan.programs[s]);
    if (own != most_in_flight(strategy, s)) strategy.stages[s].in_flight = own;
  }
}

/// Keeps the parts that the plan states, of the stages that would not divide their state so by
/// themselves.
void keep_parts(const Plan& plan, const Graph& graph, const Cluster& cluster, Strategy& strategy) {
  const auto is_sharded = [](const PlanBucket& bucket) { return bucket.is_sharded(); };
  if (std::none_of(plan.buckets.begin(), plan.buckets.end(), is_sharded)) return;
  const Result<Plan> again = lower(graph, cluster, plan.training, strategy, plan.made_by);
  for (int s = 0; s < static_cast<int>(strategy.stages.size()); ++s) {
    bool same = again.ok();
    for (std::size_t b = 0; b < plan.buckets.size() && same; ++b) {
      same = !plan.buckets[b].is_of(s) || (again->buckets[b].parts == plan.buckets[b].parts &&
                                           again->buckets[b].state == plan.buckets[b].state);
    }
    for (std::size_t b = 0; b < plan.buckets.size() && !same; ++b) {
      if (!plan.buckets[b].is_of(s)) continue;
      strategy.buckets[b].parts = plan.buckets[b].parts;
      strategy.buckets[b].state = plan.buckets[b].state;
    }
  }
}

}  // namespace

Result<Strategy> strategy_of_plan(const Plan& plan, const Graph& graph, const Cluster& cluster) {
  Strategy strategy;
  strategy.micro_batches = plan.micro_batches;
  strategy.schedule = plan.schedule;
  strategy.stage_of.resize(graph.ops.size());
  AGPCS_TRY(const auto stages, operators_of_stages(plan, graph));
  std::optional<Segments> segments;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (plan.stages[s].idle()) continue;
    for (const OpId op : stages[s]) {
      strategy.stage_of[static_cast<std::size_t>(op)] = static_cast<int>(s);
    }
    AGPCS_TRY(StageSpec spec, stage_spec(plan.stages[s], cluster));
    for (const int index : bodies_of(plan.stages[s])) {
      const PlanBody& said = plan.bodies[static_cast<std::size_t>(index)];
      AGPCS_TRY(TeamBody body, team_body_of(graph, said, stages[s], plan.training.precision));
      strategy.bodies.push_back(std::move(body));
    }
    AGPCS_TRY(spec.recompute, read_recomputation(plan.stages[s], graph, stages[s], segments));
    for (const PlanBucket& bucket : plan.buckets) {
      if (bucket.is_of(static_cast<int>(s))) spec.state = std::max(spec.state, bucket.state);
    }
    strategy.stages.push_back(std::move(spec));
  }
  read_in_flight(plan, strategy);
  strategy.flows = plan.flows;
  std::map<std::string_view, TensorId> parameters;
  for (const TensorId id : graph.parameters()) parameters[graph.tensor(id).name] = id;
  for (const PlanBucket& bucket : plan.buckets) {
    strategy.buckets.push_back(
        {bucket.stage, bucket.algorithm, {}, bucket.flow, bucket.shared_with});
    for (const BucketMember& member : bucket.members) {
      const auto found = parameters.find(member.parameter);
      if (found == parameters.end()) {
        return invalid_input(fmt::format("bucket {} has parameter '{}', which model '{}' has not",
                                         bucket.name, member.parameter, graph.called()));
      }
      strategy.buckets.back().parameters.push_back(found->second);
    }
  }
  keep_parts(plan, graph, cluster, strategy);
  return strategy;
}

}  // namespace agpcs
