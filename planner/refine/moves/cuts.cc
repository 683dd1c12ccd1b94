// SPDX-License-Identifier: Apache-2.0
// Moves that cut the whole graph anew.
#include "ir/base/at.h"
#include "planner/refine/moves/moves.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace agpcs {

/// Makes stages of consecutive blocks for `groups`, with work in proportion to their speed, or
/// parameters in proportion to their memory.
StrategyMoves::Changed StrategyMoves::with_groups(const Strategy& strategy,
                                                  std::vector<std::vector<DeviceId>> groups,
                                                  CutRule rule) {
  const int stages = static_cast<int>(groups.size()), count = problem_.blocks.size();
  if (stages > count) return std::nullopt;
  const bool by_memory = rule == CutRule::kByMemory;
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
  changed.stages.clear();
  std::vector<int> all;
  for (std::vector<DeviceId>& group : groups) {
    const std::size_t s = changed.stages.size();
    StageSpec stage = strategy.stages.front();
    stage.devices = std::move(group);
    stage.in_flight =
        groups.size() == strategy.stages.size() ? strategy.stages[s].in_flight : std::nullopt;
    all.push_back(static_cast<int>(s));
    changed.stages.push_back(std::move(stage));
  }
  changed.stage_of = stage_of_ops(problem_.blocks, stage_of_block);
  return balanced(std::move(changed), all);
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const Recut& move) {
  std::vector<std::vector<DeviceId>> groups;
  for (const StageSpec& spec : strategy.stages) groups.push_back(spec.devices);
  switch (move.order) {
    case GroupOrder::kKept:
      break;
    case GroupOrder::kRotatedLeft:
      std::rotate(groups.begin(), groups.begin() + 1, groups.end());
      break;
    case GroupOrder::kRotatedRight:
      std::rotate(groups.begin(), groups.end() - 1, groups.end());
      break;
    case GroupOrder::kReversed:
      std::reverse(groups.begin(), groups.end());
      break;
  }
  return unless_same(with_groups(strategy, std::move(groups), move.rule), strategy);
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const Restage& move) {
  std::vector<DeviceId> devices = used_devices(strategy);
  if (move.all_devices) {
    devices.resize(problem_.cluster.devices.size());
    std::iota(devices.begin(), devices.end(), 0);
  }
  if (move.order == DeviceOrder::kReversed) std::reverse(devices.begin(), devices.end());
  if (move.order == DeviceOrder::kFastestFirst) {
    std::stable_sort(devices.begin(), devices.end(),
                     [&](DeviceId a, DeviceId b) { return speeds_[at(a)] > speeds_[at(b)]; });
  }
  const std::size_t stages = at(move.stages);
  if (stages > devices.size()) return std::nullopt;
  std::vector<std::vector<DeviceId>> groups(stages);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    groups[i * stages / devices.size()].push_back(devices[i]);
  }
  for (std::vector<DeviceId>& group : groups) std::sort(group.begin(), group.end());
  return unless_same(with_groups(strategy, std::move(groups), move.rule), strategy);
}

}  // namespace agpcs
