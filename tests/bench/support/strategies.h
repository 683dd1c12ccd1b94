// SPDX-License-Identifier: Apache-2.0
// Strategies for benchmarks, made without a planner.
#pragma once

#include "cost_model/step/cost_table.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"

#include <cstdint>
#include <vector>

namespace agpcs::bench {

/// `stages` stages of about equal cost on device kind 0, each on an equal part of the devices, with
/// equal shares and buckets of 25 MB. Needs: devices divide into stages, batch into shares.
inline Strategy pipeline(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                         int stages, std::int64_t micro_batches, std::int64_t batch) {
  Strategy strategy;
  strategy.micro_batches = micro_batches;
  const int replicas = cluster.device_count() / stages;
  const std::int64_t share = batch / micro_batches / replicas;
  std::vector<double> end_of(graph.ops.size());
  double total = 0;
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    const OpSeconds seconds = costs.seconds(0, op, share);
    total += seconds.forward + seconds.backward;
    end_of[static_cast<std::size_t>(op)] = total;
  }
  for (const double end : end_of) {
    const int stage = static_cast<int>(end / total * stages * (1 - 1e-9));
    strategy.stage_of.push_back(stage);
  }
  for (int s = 0; s < stages; ++s) {
    StageSpec spec;
    for (int i = 0; i < replicas; ++i) spec.devices.push_back(s * replicas + i);
    spec.shares.assign(static_cast<std::size_t>(replicas), share);
    strategy.stages.push_back(spec);
  }
  constexpr std::int64_t kBucketBytes = 25'000'000;
  const std::vector<TensorId> parameters = graph.parameters();
  std::vector<std::int64_t> room(static_cast<std::size_t>(stages), 0);
  std::vector<int> bucket(static_cast<std::size_t>(stages), -1);
  for (auto id = parameters.rbegin(); id != parameters.rend(); ++id) {
    const auto user = static_cast<std::size_t>(graph.tensor(*id).consumers.front());
    const int stage = strategy.stage_of[user];
    const auto s = static_cast<std::size_t>(stage);
    const std::int64_t bytes = 4 * elements_at(graph.tensor(*id).shape, 1);
    if (bucket[s] < 0 || room[s] < bytes) {
      bucket[s] = static_cast<int>(strategy.buckets.size());
      strategy.buckets.push_back({stage, AllReduce::kRing, {}});
      room[s] = kBucketBytes;
    }
    strategy.buckets[static_cast<std::size_t>(bucket[s])].parameters.push_back(*id);
    room[s] -= bytes;
  }
  return strategy;
}

}  // namespace agpcs::bench
