// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/moves/moves.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/teams.h"
#include "planner/problem/alike_hosts.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

void set_stages(const BlockGraph& blocks, const std::vector<int>& stage_of_block,
                Strategy& strategy) {
  strategy.stage_of = stage_of_ops(blocks, stage_of_block);
}

/// Returns the blocks of a stage, in topological order.
std::vector<int> blocks_of(const std::vector<int>& stage_of_block, int stage) {
  std::vector<int> blocks;
  blocks.reserve(stage_of_block.size());
  for (std::size_t b = 0; b < stage_of_block.size(); ++b) {
    if (stage_of_block[b] == stage) blocks.push_back(static_cast<int>(b));
  }
  return blocks;
}

int stage_of_device(const Strategy& strategy, DeviceId device) {
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const std::vector<DeviceId>& devices = strategy.stages[s].devices;
    if (std::binary_search(devices.begin(), devices.end(), device)) return static_cast<int>(s);
  }
  return -1;
}

void add_device(std::vector<DeviceId>& devices, DeviceId device) {
  devices.insert(std::lower_bound(devices.begin(), devices.end(), device), device);
}

void remove_device(std::vector<DeviceId>& devices, DeviceId device) {
  devices.erase(std::remove(devices.begin(), devices.end(), device), devices.end());
}

/// Returns whether `device`, which is in the same stage, goes with `move.device`.
bool goes_along(const Cluster& cluster, DeviceId device, const MoveDevices& move) {
  const Device &chosen = cluster.devices[at(move.device)], &other = cluster.devices[at(device)];
  switch (move.unit) {
    case DeviceUnit::kAlone:
      return device == move.device;
    case DeviceUnit::kKindOnHost:
      return other.kind == chosen.kind && other.host == chosen.host;
    case DeviceUnit::kKind:
      return other.kind == chosen.kind;
    case DeviceUnit::kHost:
      return other.host == chosen.host;
  }
  return false;
}

/// Divides `devices` into those for which `is_first` holds, and the others.
template <typename F>
std::pair<std::vector<DeviceId>, std::vector<DeviceId>> divided(
    const std::vector<DeviceId>& devices, F is_first) {
  std::pair<std::vector<DeviceId>, std::vector<DeviceId>> parts;
  parts.first.reserve(devices.size());
  parts.second.reserve(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    (is_first(i) ? parts.first : parts.second).push_back(devices[i]);
  }
  return parts;
}

}  // namespace

std::vector<int> stage_of_blocks(const BlockGraph& blocks, const Strategy& strategy) {
  std::vector<int> stages;
  stages.reserve(blocks.blocks.size());
  for (const Block& block : blocks.blocks) {
    stages.push_back(strategy.stage_of[at(block.ops.front())]);
  }
  return stages;
}

std::vector<std::pair<std::vector<DeviceId>, std::vector<DeviceId>>> ways_to_divide(
    const Cluster& cluster, const std::vector<DeviceId>& devices) {
  std::vector<std::pair<std::vector<DeviceId>, std::vector<DeviceId>>> ways;
  if (devices.size() < 2) return ways;
  const auto device = [&](std::size_t i) -> const Device& {
    return cluster.devices[at(devices[i])];
  };
  const auto add = [&](auto is_first) {
    auto way = divided(devices, is_first);
    if (way.first.empty() || way.second.empty()) return;
    if (std::find(ways.begin(), ways.end(), way) == ways.end()) ways.push_back(std::move(way));
  };
  add([&](std::size_t i) { return i < devices.size() / 2; });
  add([&](std::size_t i) { return device(i).host == device(0).host; });
  add([&](std::size_t i) { return device(i).kind == device(0).kind; });
  add([&](std::size_t i) { return i + 1 < devices.size(); });
  return ways;
}

std::vector<DeviceId> moving_devices(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                     const MoveDevices& move) {
  std::vector<DeviceId> moving;
  for (const DeviceId device : devices) {
    if (goes_along(cluster, device, move)) moving.push_back(device);
  }
  return moving;
}

std::vector<DeviceId> used_devices(const Strategy& strategy) {
  std::vector<DeviceId> used;
  for (const StageSpec& spec : strategy.stages) {
    used.insert(used.end(), spec.devices.begin(), spec.devices.end());
  }
  std::sort(used.begin(), used.end());
  return used;
}

std::vector<DeviceId> unused_devices(const Cluster& cluster, const Strategy& strategy) {
  std::vector<bool> used(cluster.devices.size());
  for (const StageSpec& spec : strategy.stages) {
    for (const DeviceId device : spec.devices) used[at(device)] = true;
  }
  std::vector<DeviceId> unused;
  unused.reserve(used.size());
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (!used[at(id)]) unused.push_back(id);
  }
  return unused;
}

std::vector<int> same_hosts(const Cluster& cluster, const Strategy& strategy,
                            const std::vector<int>& alike) {
  using Does = std::pair<int, std::int64_t>;  // stage and samples
  std::vector<Does> does(cluster.devices.size(), {kNoStage, 0});
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      does[at(spec.devices[i])] = {static_cast<int>(s), spec.shares[i]};
    }
  }
  std::map<std::pair<int, std::vector<Does>>, int> first;
  std::vector<int> same;
  same.reserve(cluster.hosts.size());
  for (int host = 0; host < static_cast<int>(cluster.hosts.size()); ++host) {
    const Host& here = cluster.hosts[at(host)];
    const auto begin = does.begin() + here.first_device;
    const std::vector<Does> own(begin, begin + here.device_count);
    same.push_back(first.try_emplace({alike[at(host)], own}, host).first->second);
  }
  return same;
}

StrategyMoves::StrategyMoves(const Problem& problem)
    : problem_(problem),
      next_(problem.blocks.blocks.size()),
      previous_(problem.blocks.blocks.size()),
      parameters_(problem.blocks.blocks.size()),
      alike_(alike_hosts(problem.cluster)),
      times_(problem),
      timers_(problem, &times_) {
  for (const BlockEdge& edge : problem.blocks.edges) {
    next_[at(edge.from)].push_back(edge.to);
    previous_[at(edge.to)].push_back(edge.from);
  }
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& parameter = problem.graph.tensor(id);
    parameters_[at(problem.blocks.block_of[at(parameter.consumers.front())])] +=
        static_cast<double>(elements_at(parameter.shape, 1));
  }
  std::vector<double> of_kind(problem.cluster.kinds.size());
  for (const Device& device : problem.cluster.devices) {
    double& speed = of_kind[at(device.kind)];
    if (speed == 0) speed = problem.costs.speed(device.kind, problem.blocks.samples);
    speeds_.push_back(speed);
  }
  for (const double bytes : problem.blocks.cut_bytes) dearest_cut_ = std::max(dearest_cut_, bytes);
  micro_batches_ = micro_batch_numbers(problem);
}

namespace {

/// Forgets the parts of buckets whose stages have other devices than in `before`.
void forget_parts_of_others(const Strategy& before, Strategy& changed) {
  if (changed.buckets.empty()) return;
  for (std::size_t s = 0; s < changed.stages.size(); ++s) {
    const bool same =
        s < before.stages.size() && before.stages[s].devices == changed.stages[s].devices;
    if (!same) forget_parts(changed, static_cast<int>(s));
  }
}

}  // namespace

std::optional<Strategy> StrategyMoves::apply(const Strategy& strategy, const Strategy& grouped,
                                             const StrategyMove& move) {
  need_no_teams(strategy, "the search");
  timers_.forget_if_many();
  const Strategy& from = changes_buckets(move) ? grouped : strategy;
  Changed changed = std::visit([&](const auto& one) { return result_of(from, one); }, move);
  if (changed) fit_in_flight(*changed);
  if (changed) fit_offload(*changed, problem_.cluster);
  if (changed) forget_parts_of_others(from, *changed);
  const std::int64_t batch = problem_.training.batch;
  if (!changed || batch % changed->micro_batches == 0) return changed;
  const auto covered = [&](const StageSpec& spec) {
    return covers(spec, batch, changed->micro_batches);
  };
  const std::vector<StageSpec>& stages = changed->stages;
  if (!std::all_of(stages.begin(), stages.end(), covered)) changed.reset();
  return changed;
}

StrategyMoves::Changed StrategyMoves::unless_same(Changed changed, const Strategy& strategy) {
  if (!changed) return changed;
  const auto same_spec = [](const StageSpec& a, const StageSpec& b) {
    return a.devices == b.devices && a.shares == b.shares && a.recompute == b.recompute &&
           a.state == b.state && a.state_in_host == b.state_in_host && a.in_flight == b.in_flight;
  };
  const bool same = changed->stage_of == strategy.stage_of &&
                    std::equal(changed->stages.begin(), changed->stages.end(),
                               strategy.stages.begin(), strategy.stages.end(), same_spec);
  if (same) changed.reset();
  return changed;
}

void StrategyMoves::balance(Strategy& strategy, const std::vector<int>& stages) {
  const std::vector<StageTimer*>& timers = timers_.of(strategy);
  for (const int stage : stages) {
    StageSpec& spec = strategy.stages[at(stage)];
    set_group(spec, balanced_stage(problem_, *timers[at(stage)], spec.devices,
                                   largest_micro_batch(problem_, strategy.micro_batches)));
  }
}

StrategyMoves::Changed StrategyMoves::balanced(Strategy strategy, const std::vector<int>& changed) {
  strategy.buckets.clear();
  balance(strategy, changed);
  return strategy;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const ShiftCut& move) {
  std::vector<int> stage_of = stage_of_blocks(problem_.blocks, strategy);
  const bool on = move.to == Neighbour::kNext;
  const int from = on ? move.stage : move.stage + 1;
  std::vector<int> blocks = blocks_of(stage_of, from);
  if (blocks.size() < 2) return std::nullopt;
  if (on) std::reverse(blocks.begin(), blocks.end());
  double total = 0, moved = 0;
  for (const int block : blocks) total += problem_.blocks.blocks[at(block)].flops;
  const double wanted = total * part_of(move.amount);
  for (std::size_t i = 0; i + 1 < blocks.size() && (i == 0 || moved < wanted); ++i) {
    stage_of[at(blocks[i])] = on ? move.stage + 1 : move.stage;
    moved += problem_.blocks.blocks[at(blocks[i])].flops;
  }
  Strategy changed = strategy;
  set_stages(problem_.blocks, stage_of, changed);
  return balanced(std::move(changed), {move.stage, move.stage + 1});
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const MoveBlock& move) {
  std::vector<int> stage_of = stage_of_blocks(problem_.blocks, strategy);
  const bool on = move.to == Neighbour::kNext;
  const int from = stage_of[at(move.block)];
  const int to = on ? from + 1 : from - 1;
  if (to < 0 || to >= static_cast<int>(strategy.stages.size())) return std::nullopt;
  for (const int other : on ? next_[at(move.block)] : previous_[at(move.block)]) {
    if (on ? stage_of[at(other)] < to : stage_of[at(other)] > to) return std::nullopt;
  }
  if (std::count(stage_of.begin(), stage_of.end(), from) < 2) return std::nullopt;
  stage_of[at(move.block)] = to;
  Strategy changed = strategy;
  set_stages(problem_.blocks, stage_of, changed);
  return balanced(std::move(changed), {from, to});
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const MergeStages& move) {
  Strategy changed = strategy;
  StageSpec& into = changed.stages[at(move.stage)];
  const StageSpec& from = strategy.stages[at(move.stage + 1)];
  for (const DeviceId device : from.devices) add_device(into.devices, device);
  if (!into.recompute) into.recompute = from.recompute;
  into.state = std::max(into.state, from.state);
  into.state_in_host = into.state_in_host || from.state_in_host;
  if (!into.in_flight) into.in_flight = from.in_flight;
  changed.stages.erase(changed.stages.begin() + move.stage + 1);
  for (int& stage : changed.stage_of) stage -= stage > move.stage ? 1 : 0;
  return balanced(std::move(changed), {move.stage});
}

double StrategyMoves::speed_of(const std::vector<DeviceId>& devices) const {
  double speed = 0;
  for (const DeviceId device : devices) speed += speeds_[at(device)];
  return speed;
}

/// Returns what a cut before `block` adds to the part of the work by which it is off: expensive
/// cuts are avoided.
double StrategyMoves::cut_penalty(int block) const {
  return dearest_cut_ > 0 ? 0.05 * problem_.blocks.cut_bytes[at(block)] / dearest_cut_ : 0;
}

/// Returns how many of `blocks` come first, so that each group has work in proportion to its speed.
/// It prefers the cheapest cut nearby.
int StrategyMoves::cut_for(const std::vector<int>& blocks, const std::vector<DeviceId>& first,
                           const std::vector<DeviceId>& second) const {
  double total = 0, before = 0;
  for (const int block : blocks) total += problem_.blocks.blocks[at(block)].flops;
  const double a = speed_of(first), b = speed_of(second);
  const double wanted = total * a / (a + b);
  int best = 1;
  double best_cost = -1;
  for (int i = 1; i < static_cast<int>(blocks.size()); ++i) {
    before += problem_.blocks.blocks[at(blocks[at(i - 1)])].flops;
    const double off = total > 0 ? std::abs(before - wanted) / total : 0;
    const double cost = off + cut_penalty(blocks[at(i)]);
    if (best_cost >= 0 && cost >= best_cost) continue;
    best = i;
    best_cost = cost;
  }
  return best;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const SplitStage& move) {
  std::vector<int> stage_of = stage_of_blocks(problem_.blocks, strategy);
  const std::vector<int> blocks = blocks_of(stage_of, move.stage);
  if (blocks.size() < 2) return std::nullopt;
  const StageSpec& spec = strategy.stages[at(move.stage)];
  auto ways = ways_to_divide(problem_.cluster, spec.devices);
  std::vector<DeviceId> unused = unused_devices(problem_.cluster, strategy);
  if (!unused.empty()) ways.emplace_back(spec.devices, std::move(unused));
  if (move.way >= static_cast<int>(ways.size())) return std::nullopt;
  auto [first, second] = ways[at(move.way)];
  if (move.swapped) std::swap(first, second);
  const int cut = cut_for(blocks, first, second);
  for (int& stage : stage_of) stage += stage > move.stage ? 1 : 0;
  for (std::size_t i = at(cut); i < blocks.size(); ++i) stage_of[at(blocks[i])] = move.stage + 1;
  Strategy changed = strategy;
  set_stages(problem_.blocks, stage_of, changed);
  changed.stages[at(move.stage)].devices = std::move(first);
  StageSpec added = spec;
  added.devices = std::move(second);
  changed.stages.insert(changed.stages.begin() + move.stage + 1, std::move(added));
  return balanced(std::move(changed), {move.stage, move.stage + 1});
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const MoveDevices& move) {
  const int from = stage_of_device(strategy, move.device);
  if (from == move.to) return std::nullopt;
  const std::vector<DeviceId> unused = unused_devices(problem_.cluster, strategy);
  const std::vector<DeviceId>& source = from < 0 ? unused : strategy.stages[at(from)].devices;
  const std::vector<DeviceId> moving = moving_devices(problem_.cluster, source, move);
  if (from >= 0 && moving.size() == source.size()) return std::nullopt;
  Strategy changed = strategy;
  std::vector<int> stages;
  for (const DeviceId device : moving) {
    if (from >= 0) remove_device(changed.stages[at(from)].devices, device);
    if (move.to >= 0) add_device(changed.stages[at(move.to)].devices, device);
  }
  if (from >= 0) stages.push_back(from);
  if (move.to >= 0) stages.push_back(move.to);
  return unless_same(balanced(std::move(changed), stages), strategy);
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const SwapDevices& move) {
  const int a = stage_of_device(strategy, move.first), b = stage_of_device(strategy, move.second);
  if (a == b) return std::nullopt;
  Strategy changed = strategy;
  std::vector<int> stages;
  const auto exchange = [&](int stage, DeviceId leaves, DeviceId comes) {
    if (stage < 0) return;
    remove_device(changed.stages[at(stage)].devices, leaves);
    add_device(changed.stages[at(stage)].devices, comes);
    stages.push_back(stage);
  };
  exchange(a, move.first, move.second);
  exchange(b, move.second, move.first);
  return balanced(std::move(changed), stages);
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const SwapGroups& move) {
  Strategy changed = strategy;
  std::swap(changed.stages[at(move.first)].devices, changed.stages[at(move.second)].devices);
  return balanced(std::move(changed), {move.first, move.second});
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& grouped, const MergeBuckets& move) {
  Strategy changed = grouped;
  Bucket& into = changed.buckets[at(move.into)];
  const Bucket& from = changed.buckets[at(move.from)];
  forget_parts(changed, into.stage);
  into.parameters.insert(into.parameters.end(), from.parameters.begin(), from.parameters.end());
  changed.buckets.erase(changed.buckets.begin() + move.from);
  return changed;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& grouped, const SplitBucket& move) {
  Strategy changed = grouped;
  Bucket& bucket = changed.buckets[at(move.bucket)];
  forget_parts(changed, bucket.stage);
  Bucket second = bucket;
  second.parameters.assign(bucket.parameters.begin() + move.gradient, bucket.parameters.end());
  bucket.parameters.resize(at(move.gradient));
  changed.buckets.insert(changed.buckets.begin() + move.bucket + 1, std::move(second));
  return changed;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& grouped, const SwapBuckets& move) {
  Strategy changed = grouped;
  std::swap(changed.buckets[at(move.first)], changed.buckets[at(move.second)]);
  return changed;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& grouped, const SetAlgorithm& move) {
  Strategy changed = grouped;
  for (std::size_t i = 0; i < changed.buckets.size(); ++i) {
    Bucket& bucket = changed.buckets[i];
    const bool of_stage = bucket.stage == move.stage && !bucket.is_shared();
    const bool meant = move.bucket == kAllBuckets ? of_stage : move.bucket == static_cast<int>(i);
    if (meant) bucket.algorithm = move.algorithm;
  }
  return changed;
}

}  // namespace agpcs
