// SPDX-License-Identifier: Apache-2.0
// Moves that cut the whole graph anew.
#include "ir/at.h"
#include "planner/strategy_moves.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace agpcs {

/// Stages of consecutive blocks for `groups`, with work in proportion to what each has of speed, or
/// parameters in proportion to memory.
StrategyMoves::Changed StrategyMoves::with_groups(const Strategy& strategy,
                                                  std::vector<std::vector<DeviceId>> groups,
                                                  bool by_memory) {
  const int stages = static_cast<int>(groups.size()), count = problem_.blocks.size();
  if (stages > count) return std::nullopt;
  std::vector<double> has;
  for (const std::vector<DeviceId>& group : groups) {
    double memory = 0;
    for (const DeviceId device : group) {
      memory = std::max(memory, static_cast<double>(problem_.cluster.kind_of(device).memory_bytes));
    }
    has.push_back(by_memory ? memory : speed_of(group));
  }
  const double sum = std::accumulate(has.begin(), has.end(), 0.0);
  const auto weight = [&](int block) {
    return by_memory ? parameters_[at(block)] : problem_.blocks.blocks[at(block)].flops;
  };
  double total = 0;
  for (int block = 0; block < count; ++block) total += weight(block);
  std::vector<int> stage_of_block(at(count), stages - 1);
  int begin = 0;
  double before = 0, bound = 0;
  for (int s = 0; s + 1 < stages; ++s) {
    bound += has[at(s)] / sum * total;
    int best = begin + 1;
    double best_cost = -1, here = before;
    for (int end = begin + 1; end <= count - (stages - 1 - s); ++end) {
      here += weight(end - 1);
      const double cost = std::abs(here - bound) / std::max(total, 1.0) + cut_penalty(end);
      if (best_cost >= 0 && cost >= best_cost) continue;
      best = end;
      best_cost = cost;
    }
    for (; begin < best; ++begin) {
      stage_of_block[at(begin)] = s;
      before += weight(begin);
    }
  }
  Strategy changed = strategy;
  const bool recompute = strategy.stages.front().recompute;
  changed.stages.clear();
  std::vector<int> all;
  for (std::vector<DeviceId>& group : groups) {
    all.push_back(static_cast<int>(changed.stages.size()));
    changed.stages.push_back({std::move(group), {}, recompute});
  }
  changed.stage_of = stage_of_ops(problem_.blocks, stage_of_block);
  return balanced(std::move(changed), all);
}

StrategyMoves::Changed StrategyMoves::recut(const Strategy& strategy, const Move& move) {
  std::vector<std::vector<DeviceId>> groups;
  for (const StageSpec& spec : strategy.stages) groups.push_back(spec.devices);
  if (move.a == 1) std::rotate(groups.begin(), groups.begin() + 1, groups.end());
  if (move.a == 2) std::rotate(groups.begin(), groups.end() - 1, groups.end());
  if (move.a == 3) std::reverse(groups.begin(), groups.end());
  return with_groups(strategy, std::move(groups), move.b == 1);
}

StrategyMoves::Changed StrategyMoves::restage(const Strategy& strategy, const Move& move) {
  std::vector<DeviceId> devices = used_devices(strategy);
  if (move.d == 1) {
    devices.resize(problem_.cluster.devices.size());
    std::iota(devices.begin(), devices.end(), 0);
  }
  if (move.b == 1) std::reverse(devices.begin(), devices.end());
  if (move.b == 2) {
    std::stable_sort(devices.begin(), devices.end(),
                     [&](DeviceId a, DeviceId b) { return speeds_[at(a)] > speeds_[at(b)]; });
  }
  const std::size_t stages = at(move.a);
  if (stages > devices.size()) return std::nullopt;
  std::vector<std::vector<DeviceId>> groups(stages);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    groups[i * stages / devices.size()].push_back(devices[i]);
  }
  for (std::vector<DeviceId>& group : groups) std::sort(group.begin(), group.end());
  return with_groups(strategy, std::move(groups), move.c == 1);
}

}  // namespace agpcs
