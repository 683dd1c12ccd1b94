// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/simulator.h"

#include "cost_model/step/engine.h"
#include "cost_model/step/model.h"
#include "ir/base/at.h"

#include <algorithm>

namespace agpcs {
namespace {

std::vector<StageEstimate> stage_estimates(const Plan& plan, const StepModel& model,
                                           const StepRun& run) {
  std::vector<StageEstimate> stages(plan.stages.size());
  for (int r = 0; r < static_cast<int>(model.ranks.size()); ++r) {
    const StepRank& rank = model.ranks[at(r)];
    for (std::size_t i = 0; i <= rank.further_times.size(); ++i) {
      const int number = rank.stage + static_cast<int>(i) * model.round;
      const RankTimes& times = i == 0 ? rank.times : rank.further_times[i - 1];
      StageEstimate& stage = stages[at(number)];
      stage.forward_seconds = std::max(stage.forward_seconds, times.forward);
      stage.backward_seconds = std::max(stage.backward_seconds, times.backward + times.weight);
      stage.all_reduce_seconds =
          std::max(stage.all_reduce_seconds, run.ranks[at(r)].all_reduce_seconds[i]);
    }
  }
  return stages;
}

}  // namespace

Result<Estimate> simulate(const Plan& plan, const Graph& graph, const Cluster& cluster,
                          const CostTable& costs, const SimulateOptions& options) {
  AGPCS_TRY(const StepModel model, make_step_model(plan, graph, cluster, costs));
  AGPCS_TRY(StepRun run, run_step_model(plan, model, cluster, options.timeline));
  std::vector<MemoryUse> memory;
  if (options.memory != nullptr) {
    memory = *options.memory;
  } else {
    AGPCS_TRY(memory, peak_memory(plan, graph));
  }
  Estimate estimate;
  estimate.step_seconds = run.seconds;
  estimate.samples_per_second = static_cast<double>(plan.training.batch) / run.seconds;
  estimate.stages = stage_estimates(plan, model, run);
  for (std::size_t r = 0; r < model.ranks.size(); ++r) {
    const RankRun& rank = run.ranks[r];
    DeviceEstimate device;
    device.rank = static_cast<int>(r);
    device.device = cluster.device_name(model.ranks[r].device);
    device.compute_seconds = rank.compute_seconds;
    device.utilization = rank.compute_seconds / run.seconds;
    device.exposed_communication = rank.exposed_communication;
    device.team_exchange = rank.team_exchange;
    device.send_seconds = rank.send_seconds;
    device.bytes_sent = rank.bytes_sent;
    device.memory = memory[r];
    estimate.bytes_sent += rank.bytes_sent;
    estimate.devices.push_back(std::move(device));
  }
  estimate.link_bytes = std::move(run.link_bytes);
  estimate.timeline = std::move(run.timeline);
  return estimate;
}

}  // namespace agpcs
