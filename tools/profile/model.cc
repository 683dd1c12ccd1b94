// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/model.h"

#include "codegen/lower.h"
#include "cost_model/fit/calibrate.h"
#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/file.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/team/stage_teams.h"
#include "planner/team/starts.h"

#include <agpcs/version.h>

#include <fmt/format.h>

#include <cstddef>
#include <numeric>

namespace agpcs {

Result<Cluster> one_host(const std::string& kind, std::int64_t devices, const MemberLink& link) {
  const bool known = catalog().find_accelerator(kind) != nullptr;
  const std::string text = fmt::format(
      "name: alone\n"
      "device_kinds:\n"
      "  {0}: {{memory: 1TB{1}}}\n"
      "hosts:\n"
      "  - name: local\n"
      "    devices: {{kind: {0}, count: {2}}}\n"
      "    interconnect: {{kind: tcp, bandwidth: {3}B/s, latency: {4}s}}\n"
      "    nic: {{bandwidth: 1GB/s, latency: 1us}}\n"
      "network: {{topology: switch}}\n",
      kind, known ? "" : ", memory_bandwidth: 1GB/s, peak: {fp32: 1GFLOPS}", devices,
      link.bandwidth, link.latency);
  AGPCS_TRY(ClusterFile file, parse_cluster(text, "one host"));
  return std::move(file.cluster);
}

Result<Plan> MeasuredModel::plan_for(std::int64_t samples) const {
  Training training = problem->training;
  training.batch = samples;
  Strategy alone = strategy;
  alone.stages.front().shares = {samples};
  return lower(problem->graph, problem->cluster, training, alone,
               {std::string(version()), 0, "agpcs-profile", "none"});
}

Result<MeasuredModel> model_alone(Graph graph, Cluster cluster, const Training& training) {
  MeasuredModel model;
  model.name = graph.called();
  AGPCS_TRY(model.problem, Problem::make(std::move(graph), std::move(cluster), training));
  Strategy strategy;
  strategy.stage_of.assign(model.graph().ops.size(), 0);
  strategy.stages.push_back({{0}, {1}, false});
  model.strategy =
      group_gradients(*model.problem, std::move(strategy), model.problem->options.bucket_bytes);
  return model;
}

namespace {

/// Returns a host of devices whose figures are those of `device`.
Result<Cluster> measured_host(const DeviceProfile& device, std::int64_t members,
                              const MemberLink& link) {
  AGPCS_TRY(Cluster cluster, one_host(device.name, members, link));
  Profile profile;
  profile.file = "the operators of the whole model";
  profile.devices = {device};
  seal_profile(profile);
  cluster.profiles = {std::move(profile)};
  cluster.kinds.front().profile = {0, device.name};
  AGPCS_TRY(Calibrated calibrated, calibrate(std::move(cluster)));
  return std::move(calibrated.cluster);
}

/// Sets what member 0 has of the operators of a team's body, except of those that it computes
/// whole.
void find_parts(MemberModel& model) {
  const TeamBody& body = model.strategy.bodies.front();
  std::vector<MemberOp> parts;
  for (const TeamOp& op : body.ops) {
    const MemberOp part = member_op(model.graph(), body, op, 0);
    if (part.units > 0) parts.push_back(part);
  }
  PartsGraph made = graph_of_parts(model.graph(), parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    model.measured.emplace_back(parts[i].op, made.ops[i]);
  }
  model.parts = std::move(made.graph);
}

}  // namespace

Result<std::optional<MemberModel>> model_of_member(const MeasuredModel& alone,
                                                   const DeviceProfile& device,
                                                   std::int64_t members, const MemberLink& link,
                                                   std::int64_t samples) {
  AGPCS_TRY(Cluster cluster, measured_host(device, members, link));
  Training training = alone.problem->training;
  training.batch = samples;
  MemberModel model;
  AGPCS_TRY(model.problem, Problem::make(alone.graph(), std::move(cluster), training));
  const std::size_t count = model.graph().ops.size();
  TeamOrder order;
  order.ops.resize(count);
  std::iota(order.ops.begin(), order.ops.end(), 0);
  order.teams.emplace_back(static_cast<std::size_t>(members));
  std::iota(order.teams.front().begin(), order.teams.front().end(), 0);
  order.parts.assign(static_cast<std::size_t>(members), 1);
  StageTeams teams(*model.problem);
  std::optional<FormedStage> formed = teams.make(std::move(order));
  if (!formed || !is_worth_it(formed->body)) return std::optional<MemberModel>();
  Strategy strategy;
  strategy.stage_of.assign(count, 0);
  strategy.stages.emplace_back();
  take_teams(*std::move(formed), 0, strategy);
  model.strategy =
      group_gradients(*model.problem, std::move(strategy), model.problem->options.bucket_bytes);
  model.name = fmt::format("{}, of a team of {}", alone.name, members);
  find_parts(model);
  return std::optional<MemberModel>(std::move(model));
}

}  // namespace agpcs
