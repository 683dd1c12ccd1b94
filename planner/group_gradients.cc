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

struct Trained {
  TensorId id = kNone;
  OpId first = kNone;  // its first consumer
  std::int64_t bytes = 0;
  DType held = DType::kFp32;
};

/// The trained parameters of each stage, first completed gradient first.
std::vector<std::vector<Trained>> backward_order(const Problem& problem, const Strategy& strategy) {
  std::vector<std::vector<Trained>> by_stage(strategy.stages.size());
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& tensor = problem.graph.tensor(id);
    if (!tensor.needs_gradient) continue;
    const DType held = held_type(tensor.type, problem.training.precision);
    const std::int64_t bytes =
        elements_at(tensor.shape, 1) * static_cast<std::int64_t>(size_of(held));
    const OpId first = tensor.consumers.front();
    by_stage[at(strategy.stage_of[at(first)])].push_back({id, first, bytes, held});
  }
  for (std::vector<Trained>& stage : by_stage) {
    std::stable_sort(stage.begin(), stage.end(),
                     [](const Trained& a, const Trained& b) { return a.first > b.first; });
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
  const std::vector<std::vector<Trained>> order = backward_order(problem, strategy);
  for (std::size_t stage = 0; stage < order.size(); ++stage) {
    for_each_group(order[stage], bucket_bytes,
                   [&](std::size_t first, std::size_t count, std::int64_t bytes) {
                     Bucket bucket = {static_cast<int>(stage), AllReduce::kRing, {}};
                     if (bytes > 0) {
                       bucket.algorithm =
                           choose_algorithm(problem.cluster, strategy.stages[stage].devices, bytes);
                     }
                     for (std::size_t i = first; i < first + count; ++i) {
                       bucket.parameters.push_back(order[stage][i].id);
                     }
                     strategy.buckets.push_back(std::move(bucket));
                   });
  }
  return strategy;
}

}  // namespace agpcs
