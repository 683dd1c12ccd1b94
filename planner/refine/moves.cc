// SPDX-License-Identifier: Apache-2.0
#include "planner/strategy_moves.h"

#include "ir/at.h"
#include "ir/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr std::array<std::string_view, kMoveKindCount> kNames = {
    "shift",        "move-block",   "merge",           "split",     "move-devices",
    "swap-devices", "swap-groups",  "shares",          "rebalance", "micro-batches",
    "schedule",     "recompute",    "recut",           "restage",   "merge-buckets",
    "split-bucket", "swap-buckets", "bucket-algorithm"};

void set_stages(const BlockGraph& blocks, const std::vector<int>& stage_of_block,
                Strategy& strategy) {
  strategy.stage_of = stage_of_ops(blocks, stage_of_block);
}

/// Blocks of a stage, in topological order.
std::vector<int> blocks_of(const std::vector<int>& stage_of_block, int stage) {
  std::vector<int> blocks;
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

std::optional<Strategy> merge_buckets(Strategy strategy, const Move& move) {
  Bucket& into = strategy.buckets[at(move.a)];
  Bucket& from = strategy.buckets[at(move.b)];
  into.parameters.insert(into.parameters.end(), from.parameters.begin(), from.parameters.end());
  strategy.buckets.erase(strategy.buckets.begin() + move.b);
  return strategy;
}

std::optional<Strategy> split_bucket(Strategy strategy, const Move& move) {
  Bucket& bucket = strategy.buckets[at(move.a)];
  Bucket second = bucket;
  second.parameters.assign(bucket.parameters.begin() + move.b, bucket.parameters.end());
  bucket.parameters.resize(at(move.b));
  strategy.buckets.insert(strategy.buckets.begin() + move.a + 1, std::move(second));
  return strategy;
}

std::optional<Strategy> change_algorithm(Strategy strategy, const Move& move) {
  const auto algorithm = static_cast<AllReduce>(move.b);
  for (std::size_t i = 0; i < strategy.buckets.size(); ++i) {
    Bucket& bucket = strategy.buckets[i];
    if (static_cast<int>(i) == move.a || bucket.stage == -1 - move.a) bucket.algorithm = algorithm;
  }
  return strategy;
}

/// `changed`, unless it is `strategy` but for its buckets.
std::optional<Strategy> unless_same(std::optional<Strategy> changed, const Strategy& strategy) {
  if (!changed) return changed;
  const auto same_spec = [](const StageSpec& a, const StageSpec& b) {
    return a.devices == b.devices && a.shares == b.shares && a.recompute == b.recompute;
  };
  const bool same = changed->stage_of == strategy.stage_of &&
                    std::equal(changed->stages.begin(), changed->stages.end(),
                               strategy.stages.begin(), strategy.stages.end(), same_spec);
  return same ? std::nullopt : changed;
}

/// Parts of `devices`: those for which `is_first` holds, and the others.
template <typename F>
std::pair<std::vector<DeviceId>, std::vector<DeviceId>> divided(
    const std::vector<DeviceId>& devices, F is_first) {
  std::pair<std::vector<DeviceId>, std::vector<DeviceId>> parts;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    (is_first(i) ? parts.first : parts.second).push_back(devices[i]);
  }
  return parts;
}

}  // namespace

std::string_view name_of(MoveKind kind) { return kNames[at(static_cast<int>(kind))]; }

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
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (!used[at(id)]) unused.push_back(id);
  }
  return unused;
}

StrategyMoves::StrategyMoves(const Problem& problem)
    : problem_(problem),
      next_(problem.blocks.blocks.size()),
      previous_(problem.blocks.blocks.size()),
      parameters_(problem.blocks.blocks.size()),
      timers_(problem) {
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
  micro_batches_ = problem.options.micro_batches > 0
                       ? std::vector<std::int64_t>{problem.options.micro_batches}
                       : micro_batch_numbers(problem.training.batch);
}

std::optional<Strategy> StrategyMoves::apply(const Strategy& strategy, const Strategy& grouped,
                                             const Move& move) {
  timers_.forget_if_many();
  switch (static_cast<MoveKind>(move.kind)) {
    case MoveKind::kShift:
      return shift(strategy, move);
    case MoveKind::kMoveBlock:
      return move_block(strategy, move);
    case MoveKind::kMerge:
      return merge(strategy, move);
    case MoveKind::kSplit:
      return split(strategy, move);
    case MoveKind::kMoveDevices:
      return unless_same(move_devices(strategy, move), strategy);
    case MoveKind::kSwapDevices:
      return swap_devices(strategy, move);
    case MoveKind::kSwapGroups:
      return swap_groups(strategy, move);
    case MoveKind::kShares:
      return move_shares(strategy, move);
    case MoveKind::kRebalance:
      return rebalance(strategy, move);
    case MoveKind::kMicroBatches:
      return change_micro_batches(strategy, move);
    case MoveKind::kSchedule: {
      Strategy changed = strategy;
      changed.schedule = strategy.schedule == Schedule::k1F1B ? Schedule::kGPipe : Schedule::k1F1B;
      return changed;
    }
    case MoveKind::kRecompute:
      return change_recompute(strategy, move);
    case MoveKind::kRecut:
      return unless_same(recut(strategy, move), strategy);
    case MoveKind::kRestage:
      return unless_same(restage(strategy, move), strategy);
    case MoveKind::kMergeBuckets:
      return merge_buckets(grouped, move);
    case MoveKind::kSplitBucket:
      return split_bucket(grouped, move);
    case MoveKind::kSwapBuckets: {
      Strategy changed = grouped;
      std::swap(changed.buckets[at(move.a)], changed.buckets[at(move.b)]);
      return changed;
    }
    case MoveKind::kBucketAlgorithm:
      return change_algorithm(grouped, move);
  }
  AGPCS_CHECK(false, "move of kind {}", move.kind);
}

void StrategyMoves::balance(Strategy& strategy, int stage, std::vector<OpId> ops) {
  StageSpec& spec = strategy.stages[at(stage)];
  StageSpec balanced = balanced_stage(problem_, timers_.of(std::move(ops)), spec.devices,
                                      problem_.training.batch / strategy.micro_batches);
  balanced.recompute = spec.recompute;
  spec = std::move(balanced);
}

StrategyMoves::Changed StrategyMoves::balanced(Strategy strategy, const std::vector<int>& changed) {
  strategy.buckets.clear();
  auto ops = ops_of_stages(strategy.stage_of, static_cast<int>(strategy.stages.size()));
  for (const int stage : changed) balance(strategy, stage, std::move(ops[at(stage)]));
  return strategy;
}

StrategyMoves::Changed StrategyMoves::shift(const Strategy& strategy, const Move& move) {
  std::vector<int> stage_of = stage_of_blocks(problem_.blocks, strategy);
  const int from = move.b == 0 ? move.a : move.a + 1;
  std::vector<int> blocks = blocks_of(stage_of, from);
  if (blocks.size() < 2) return std::nullopt;
  if (move.b == 0) std::reverse(blocks.begin(), blocks.end());
  double total = 0, moved = 0;
  for (const int block : blocks) total += problem_.blocks.blocks[at(block)].flops;
  const double wanted = move.c == 0 ? 0 : total / static_cast<double>(1 << (4 - move.c));
  for (std::size_t i = 0; i + 1 < blocks.size() && (i == 0 || moved < wanted); ++i) {
    stage_of[at(blocks[i])] = move.b == 0 ? move.a + 1 : move.a;
    moved += problem_.blocks.blocks[at(blocks[i])].flops;
  }
  Strategy changed = strategy;
  set_stages(problem_.blocks, stage_of, changed);
  return balanced(std::move(changed), {move.a, move.a + 1});
}

StrategyMoves::Changed StrategyMoves::move_block(const Strategy& strategy, const Move& move) {
  std::vector<int> stage_of = stage_of_blocks(problem_.blocks, strategy);
  const int from = stage_of[at(move.a)];
  const int to = from + move.b;
  if (to < 0 || to >= static_cast<int>(strategy.stages.size())) return std::nullopt;
  for (const int other : move.b > 0 ? next_[at(move.a)] : previous_[at(move.a)]) {
    if (move.b > 0 ? stage_of[at(other)] < to : stage_of[at(other)] > to) return std::nullopt;
  }
  if (std::count(stage_of.begin(), stage_of.end(), from) < 2) return std::nullopt;
  stage_of[at(move.a)] = to;
  Strategy changed = strategy;
  set_stages(problem_.blocks, stage_of, changed);
  return balanced(std::move(changed), {from, to});
}

StrategyMoves::Changed StrategyMoves::merge(const Strategy& strategy, const Move& move) {
  Strategy changed = strategy;
  StageSpec& into = changed.stages[at(move.a)];
  const StageSpec& from = strategy.stages[at(move.a + 1)];
  for (const DeviceId device : from.devices) add_device(into.devices, device);
  into.recompute = into.recompute || from.recompute;
  changed.stages.erase(changed.stages.begin() + move.a + 1);
  for (int& stage : changed.stage_of) stage -= stage > move.a ? 1 : 0;
  return balanced(std::move(changed), {move.a});
}

double StrategyMoves::speed_of(const std::vector<DeviceId>& devices) const {
  double speed = 0;
  for (const DeviceId device : devices) speed += speeds_[at(device)];
  return speed;
}

/// What a cut before `block` adds to being off by a fraction of the work: dear cuts are avoided.
double StrategyMoves::cut_penalty(int block) const {
  return dearest_cut_ > 0 ? 0.05 * problem_.blocks.cut_bytes[at(block)] / dearest_cut_ : 0;
}

/// How many of `blocks` come first, so that each group has work in proportion to its speed; nearby
/// the cheapest cut.
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

StrategyMoves::Changed StrategyMoves::split(const Strategy& strategy, const Move& move) {
  std::vector<int> stage_of = stage_of_blocks(problem_.blocks, strategy);
  const std::vector<int> blocks = blocks_of(stage_of, move.a);
  if (blocks.size() < 2) return std::nullopt;
  const StageSpec& spec = strategy.stages[at(move.a)];
  auto ways = ways_to_divide(problem_.cluster, spec.devices);
  std::vector<DeviceId> unused = unused_devices(problem_.cluster, strategy);
  if (!unused.empty()) ways.emplace_back(spec.devices, std::move(unused));
  if (move.b >= static_cast<int>(ways.size())) return std::nullopt;
  auto [first, second] = ways[at(move.b)];
  if (move.c == 1) std::swap(first, second);
  const int cut = cut_for(blocks, first, second);
  for (int& stage : stage_of) stage += stage > move.a ? 1 : 0;
  for (std::size_t i = at(cut); i < blocks.size(); ++i) stage_of[at(blocks[i])] = move.a + 1;
  Strategy changed = strategy;
  set_stages(problem_.blocks, stage_of, changed);
  changed.stages[at(move.a)].devices = std::move(first);
  StageSpec added;
  added.devices = std::move(second);
  added.recompute = spec.recompute;
  changed.stages.insert(changed.stages.begin() + move.a + 1, std::move(added));
  return balanced(std::move(changed), {move.a, move.a + 1});
}

StrategyMoves::Changed StrategyMoves::move_devices(const Strategy& strategy, const Move& move) {
  const int from = stage_of_device(strategy, move.a);
  if (from == move.b) return std::nullopt;
  const Device& chosen = problem_.cluster.devices[at(move.a)];
  const std::vector<DeviceId> unused = unused_devices(problem_.cluster, strategy);
  const std::vector<DeviceId>& source = from < 0 ? unused : strategy.stages[at(from)].devices;
  std::vector<DeviceId> moving;
  for (const DeviceId device : source) {
    const Device& other = problem_.cluster.devices[at(device)];
    const bool goes = move.c == 0   ? device == move.a
                      : move.c == 1 ? other.kind == chosen.kind && other.host == chosen.host
                                    : other.kind == chosen.kind;
    if (goes) moving.push_back(device);
  }
  if (from >= 0 && moving.size() == source.size()) return std::nullopt;
  Strategy changed = strategy;
  std::vector<int> stages;
  for (const DeviceId device : moving) {
    if (from >= 0) remove_device(changed.stages[at(from)].devices, device);
    if (move.b >= 0) add_device(changed.stages[at(move.b)].devices, device);
  }
  if (from >= 0) stages.push_back(from);
  if (move.b >= 0) stages.push_back(move.b);
  return balanced(std::move(changed), stages);
}

StrategyMoves::Changed StrategyMoves::swap_devices(const Strategy& strategy, const Move& move) {
  const int a = stage_of_device(strategy, move.a), b = stage_of_device(strategy, move.b);
  if (a == b) return std::nullopt;
  Strategy changed = strategy;
  std::vector<int> stages;
  const auto exchange = [&](int stage, DeviceId leaves, DeviceId comes) {
    if (stage < 0) return;
    remove_device(changed.stages[at(stage)].devices, leaves);
    add_device(changed.stages[at(stage)].devices, comes);
    stages.push_back(stage);
  };
  exchange(a, move.a, move.b);
  exchange(b, move.b, move.a);
  return balanced(std::move(changed), stages);
}

StrategyMoves::Changed StrategyMoves::swap_groups(const Strategy& strategy, const Move& move) {
  Strategy changed = strategy;
  std::swap(changed.stages[at(move.a)].devices, changed.stages[at(move.b)].devices);
  return balanced(std::move(changed), {move.a, move.b});
}

StrategyMoves::Changed StrategyMoves::move_shares(const Strategy& strategy, const Move& move) {
  Strategy changed = strategy;
  StageSpec& spec = changed.stages[at(move.a)];
  if (spec.shares[at(move.b)] <= move.d) return std::nullopt;
  spec.shares[at(move.b)] -= move.d;
  spec.shares[at(move.c)] += move.d;
  return changed;
}

StrategyMoves::Changed StrategyMoves::rebalance(const Strategy& strategy, const Move& move) {
  Strategy changed = strategy;
  StageSpec& spec = changed.stages[at(move.a)];
  const StageSpec before = spec;
  if (move.b == 0) {
    auto ops = ops_of_stages(changed.stage_of, static_cast<int>(changed.stages.size()));
    balance(changed, move.a, std::move(ops[at(move.a)]));
  } else {
    spec = equal_stage(before.devices, problem_.training.batch / strategy.micro_batches);
    spec.recompute = before.recompute;
  }
  if (spec.shares == before.shares && spec.devices == before.devices) return std::nullopt;
  if (spec.devices != before.devices) changed.buckets.clear();
  return changed;
}

StrategyMoves::Changed StrategyMoves::change_micro_batches(const Strategy& strategy,
                                                           const Move& move) {
  Strategy changed = strategy;
  changed.micro_batches = move.a;
  std::vector<int> all(strategy.stages.size());
  std::iota(all.begin(), all.end(), 0);
  return balanced(std::move(changed), all);
}

StrategyMoves::Changed StrategyMoves::change_recompute(const Strategy& strategy, const Move& move) {
  Strategy changed = strategy;
  bool any = false;
  for (std::size_t s = 0; s < changed.stages.size(); ++s) {
    bool& recompute = changed.stages[s].recompute;
    const bool was = recompute;
    if (move.a < 0) recompute = move.b == 1;
    if (static_cast<int>(s) == move.a) recompute = !recompute;
    any = any || recompute != was;
  }
  if (!any) return std::nullopt;
  return changed;
}

}  // namespace agpcs
