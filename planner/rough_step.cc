// SPDX-License-Identifier: Apache-2.0
#include "planner/rough_step.h"

#include "cost_model/link_model.h"
#include "planner/candidates.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace agpcs {
namespace {

std::size_t at(int id) { return static_cast<std::size_t>(id); }

/// Devices of groups whose all-reduces are remembered.
constexpr std::size_t kMostRemembered = std::size_t{1} << 24;
constexpr std::int64_t kSmall = std::int64_t{1} << 20, kLarge = std::int64_t{32} << 20;

}  // namespace

RoughModel::RoughModel(const Problem& problem) : problem_(problem) {
  for (const std::int64_t bytes : gradient_bytes(problem)) {
    gradient_bytes_.push_back(static_cast<double>(bytes));
  }
}

RoughStep RoughModel::step(const Strategy& strategy, StageTimers& timers) {
  const std::size_t stages = strategy.stages.size();
  const std::vector<StageTimer*> timer_of = timers.of(strategy);
  const auto micro_batches = static_cast<double>(strategy.micro_batches);
  RoughStep rough;
  std::vector<double> bytes(stages), seconds(stages);
  for (std::size_t b = 0; b < gradient_bytes_.size(); ++b) {
    bytes[at(strategy.stage_of[at(problem_.blocks.blocks[b].ops.front())])] += gradient_bytes_[b];
  }
  for (std::size_t s = 0; s < stages; ++s) {
    const StageSpec& spec = strategy.stages[s];
    const double again = spec.recompute ? 4.0 / 3 : 1;  // a forward is about half a backward
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const int kind = problem_.cluster.devices[at(spec.devices[i])].kind;
      const double own = again * timer_of[s]->seconds(kind, spec.shares[i]);
      rough.busy += own * micro_batches;
      seconds[s] = std::max(seconds[s], own);
    }
    if (seconds[s] > rough.slowest_stage) {
      rough.slowest_stage = seconds[s];
      rough.bottleneck = static_cast<int>(s);
    }
    rough.sum_of_stages += seconds[s];
    const double reduce = reduce_line(spec.devices).at(bytes[s]);
    rough.reduces = std::max(rough.reduces, reduce);
    rough.late = std::max(rough.late, reduce - seconds[s] / 2);
  }
  std::map<std::pair<int, int>, double> cuts;
  for (const BlockEdge& edge : problem_.blocks.edges) {
    const int from = strategy.stage_of[at(problem_.blocks.blocks[at(edge.from)].ops.front())];
    const int to = strategy.stage_of[at(problem_.blocks.blocks[at(edge.to)].ops.front())];
    if (from != to) cuts[{from, to}] += edge.bytes / static_cast<double>(problem_.blocks.samples);
  }
  const double samples = static_cast<double>(problem_.training.batch) / micro_batches;
  std::vector<double> way(stages);  // after a stage, to the last one and back
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    const auto [from, to] = cut->first;
    const double own = cut_seconds(strategy, from, to, cut->second * samples);
    rough.slowest_cut = std::max(rough.slowest_cut, own);
    way[at(from)] = std::max(way[at(from)], way[at(to)] + seconds[at(to)] + 2 * own);
  }
  for (std::size_t s = 0; s < stages; ++s) {
    rough.longest_way = std::max(rough.longest_way, way[s] + seconds[s]);
  }
  rough.seconds = rough.longest_way +
                  (micro_batches - 1) * std::max(rough.slowest_stage, rough.slowest_cut) +
                  rough.late;
  return rough;
}

double RoughModel::cut_seconds(const Strategy& strategy, int from, int to, double bytes) {
  const std::vector<DeviceId>& a = strategy.stages[at(from)].devices;
  const std::vector<DeviceId>& b = strategy.stages[at(to)].devices;
  const auto lanes = static_cast<double>(lanes_between(problem_.cluster, a, b));
  return transfer_line(a.front(), b.front()).at(bytes / lanes);
}

const RoughModel::Line& RoughModel::transfer_line(DeviceId from, DeviceId to) {
  const std::uint64_t key = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(to);
  const auto [entry, added] = transfers_.try_emplace(key);
  if (added) {
    const auto seconds = [&](std::int64_t bytes) {
      return lone_seconds(problem_.cluster, transfer(problem_.cluster, from, to, bytes));
    };
    const double slope = (seconds(kLarge) - seconds(kSmall)) / static_cast<double>(kLarge - kSmall);
    entry->second = {std::max(0.0, seconds(kSmall) - slope * kSmall), slope};
  }
  return entry->second;
}

const RoughModel::Line& RoughModel::reduce_line(const std::vector<DeviceId>& devices) {
  if (remembered_ > kMostRemembered) {
    reduces_.clear();
    remembered_ = 0;
  }
  const auto [entry, added] = reduces_.try_emplace(devices);
  if (added) remembered_ += devices.size();
  if (added && devices.size() > 1) {
    const auto seconds = [&](std::int64_t bytes) {
      return all_reduce_seconds(problem_.cluster, devices, bytes);
    };
    const double small = seconds(kSmall);
    const double slope = (seconds(kLarge) - small) / static_cast<double>(kLarge - kSmall);
    entry->second = {std::max(0.0, small - slope * kSmall), slope};
  }
  return entry->second;
}

}  // namespace agpcs
