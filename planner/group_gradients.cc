// SPDX-License-Identifier: Apache-2.0
#include "planner/group_gradients.h"

#include "cost_model/link_model.h"
#include "ir/check.h"
#include "ir/plan_graph.h"

#include <algorithm>
#include <set>
#include <utility>

namespace agpcs {
namespace {

std::size_t at(int id) { return static_cast<std::size_t>(id); }

/// The trained parameters of each stage, first completed gradient first.
std::vector<std::vector<TensorId>> backward_order(const Graph& graph, const Strategy& strategy) {
  std::vector<std::vector<TensorId>> by_stage(strategy.stages.size());
  for (const TensorId id : graph.parameters()) {
    const Tensor& parameter = graph.tensor(id);
    if (!parameter.needs_gradient) continue;
    by_stage[at(strategy.stage_of[at(parameter.consumers.front())])].push_back(id);
  }
  for (std::vector<TensorId>& stage : by_stage) {
    std::stable_sort(stage.begin(), stage.end(), [&](TensorId a, TensorId b) {
      return graph.tensor(a).consumers.front() > graph.tensor(b).consumers.front();
    });
  }
  return by_stage;
}

}  // namespace

AllReduce choose_algorithm(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t bytes) {
  std::set<int> hosts;
  for (const DeviceId device : devices) hosts.insert(cluster.devices[at(device)].host);
  if (hosts.size() < 2 || hosts.size() == devices.size()) return AllReduce::kRing;
  const auto seconds = [&](AllReduce algorithm) {
    return lone_seconds(cluster, all_reduce(cluster, devices, algorithm, bytes));
  };
  return seconds(AllReduce::kHierarchical) < seconds(AllReduce::kRing) ? AllReduce::kHierarchical
                                                                       : AllReduce::kRing;
}

Strategy group_gradients(const Problem& problem, Strategy strategy, std::int64_t bucket_bytes) {
  AGPCS_CHECK(strategy.buckets.empty(), "strategy has {} buckets", strategy.buckets.size());
  const std::vector<std::vector<TensorId>> order = backward_order(problem.graph, strategy);
  for (std::size_t stage = 0; stage < order.size(); ++stage) {
    std::int64_t bytes = 0;
    DType type = DType::kFp32;
    const auto close = [&] {
      if (bytes == 0) return;
      strategy.buckets.back().algorithm =
          choose_algorithm(problem.cluster, strategy.stages[stage].devices, bytes);
      bytes = 0;
    };
    for (const TensorId id : order[stage]) {
      const Tensor& parameter = problem.graph.tensor(id);
      const DType held = held_type(parameter.type, problem.training.precision);
      const std::int64_t size =
          elements_at(parameter.shape, 1) * static_cast<std::int64_t>(size_of(held));
      if (bytes > 0 && (held != type || bytes + size > bucket_bytes)) close();
      if (bytes == 0) strategy.buckets.push_back({static_cast<int>(stage), AllReduce::kRing, {}});
      strategy.buckets.back().parameters.push_back(id);
      bytes += size;
      type = held;
    }
    close();
  }
  return strategy;
}

}  // namespace agpcs
