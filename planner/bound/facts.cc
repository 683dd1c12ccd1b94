// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/facts.h"

#include "ir/base/largest_that_holds.h"
#include "planner/problem/micro_batches.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace agpcs {

BoundFacts::BoundFacts(const Problem& of) : problem(of), costs(of.costs), batch(of.training.batch) {
  numbers = micro_batch_numbers(problem);
  samples = batch / numbers.front();
  largest = largest_micro_batch(batch, numbers.front());
  const std::vector<int> counts = count_devices(problem.cluster, 0, problem.cluster.device_count());
  for (std::size_t k = 0; k < counts.size(); ++k) {
    if (counts[k] > 0) kinds.push_back(static_cast<int>(k));
  }
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& tensor = problem.graph.tensor(id);
    if (!tensor.needs_gradient || tensor.consumers.empty()) continue;
    gradients.push_back(gradient_of(problem, id));
  }
}

std::vector<int> count_devices(const Cluster& cluster, DeviceId first, DeviceId end,
                               std::int64_t needed) {
  std::vector<int> counts(cluster.kinds.size());
  for (DeviceId id = first; id < end; ++id) {
    const Device& device = cluster.devices[at(id)];
    if (cluster.kinds[at(device.kind)].memory_bytes >= needed) ++counts[at(device.kind)];
  }
  return counts;
}

double least_time(const BoundFacts& facts, const std::vector<int>& counts, double enough,
                  const std::function<double(int kind, std::int64_t samples)>& seconds) {
  const auto taken = [&](int kind, double time) {
    return largest_that_holds(std::int64_t{0}, facts.samples + 1,
                              [&](std::int64_t samples) { return seconds(kind, samples) <= time; });
  };
  const auto suffices = [&](double time) {
    double total = 0;
    for (const int kind : facts.kinds) {
      if (counts[at(kind)] == 0) continue;
      total += static_cast<double>(taken(kind, time)) * counts[at(kind)];
    }
    return total >= static_cast<double>(facts.samples);
  };
  constexpr double kForever = std::numeric_limits<double>::infinity();
  if (std::accumulate(counts.begin(), counts.end(), 0) == 0) return kForever;
  if (enough < kForever && !suffices(enough)) return enough;
  double low = 0, high = 0;
  for (const int kind : facts.kinds) {
    if (counts[at(kind)] > 0) high = std::max(high, seconds(kind, facts.samples));
  }
  if (high == 0) return 0;
  for (int i = 0; i < 40; ++i) {
    const double time = (low + high) / 2;
    (suffices(time) ? high : low) = time;
  }
  return low;
}

}  // namespace agpcs
