// SPDX-License-Identifier: Apache-2.0
// Moves that leave cuts and devices as they are: shares, micro-batches, the schedule, memory.
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/shares.h"
#include "planner/refine/moves/moves.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns the place of `device` in its stage.
std::size_t replica_of(const StageSpec& spec, DeviceId device) {
  const auto found = std::lower_bound(spec.devices.begin(), spec.devices.end(), device);
  AGPCS_CHECK(found != spec.devices.end() && *found == device, "device {} of another stage",
              device);
  return static_cast<std::size_t>(found - spec.devices.begin());
}

/// Gives the buckets of `stage` the algorithms that are fastest for what becomes of their sums now.
/// Those that other stages share, or that take a flow, keep theirs, and so do those of teams.
void choose_algorithms(const Problem& problem, int stage, Strategy& strategy) {
  const StageSpec& spec = strategy.stages[at(stage)];
  if (spec.has_teams()) return;
  for (Bucket& bucket : strategy.buckets) {
    if (bucket.stage != stage || bucket.is_shared() || bucket.algorithm == AllReduce::kFlow)
      continue;
    bucket.algorithm =
        choose_algorithm(problem.cluster, spec.devices, travelling_bytes(problem, bucket),
                         sum_of_stage(spec, problem.training));
  }
}

/// Leaves out the devices without a sample.
void leave_out_idle(StageSpec& spec) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    if (spec.shares[i] == 0) continue;
    spec.devices[kept] = spec.devices[i];
    spec.shares[kept++] = spec.shares[i];
  }
  spec.devices.resize(kept);
  spec.shares.resize(kept);
}

/// Changes what is in flight in `stage`, or in all stages; and in those before it if it gets more.
void change_in_flight(InFlight change, int stage, Strategy& strategy) {
  std::vector<std::int64_t> numbers = in_flight_by_stage(strategy);
  if (strategy.schedule == Schedule::kGPipe) strategy.schedule = Schedule::k1F1B;
  for (int s = 0; s < static_cast<int>(numbers.size()); ++s) {
    std::int64_t& number = numbers[at(s)];
    const bool changes = stage == kAllStages || stage == s;
    if (change == InFlight::kOneMore && s <= stage) ++number;
    if (change == InFlight::kOneMoreAStage && s < stage) number += stage - s;
    if (change == InFlight::kTwoMoreAStage && s < stage) number += 2 * (stage - s);
    if (change == InFlight::kOneFewer && changes) --number;
    if (change == InFlight::kHalfAsMany && changes) number /= 2;
    std::optional<std::int64_t>& own = strategy.stages[at(s)].in_flight;
    own = std::clamp<std::int64_t>(number, 1, strategy.micro_batches);
    if (change == InFlight::kTextbook && changes) own.reset();
  }
}

}  // namespace

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const MoveSamples& move) {
  Strategy changed = strategy;
  StageSpec& spec = changed.stages[at(move.stage)];
  const std::size_t from = replica_of(spec, move.from);
  if (spec.shares[from] < move.samples) return std::nullopt;
  spec.shares[from] -= move.samples;
  spec.shares[replica_of(spec, move.to)] += move.samples;
  leave_out_idle(spec);
  return changed;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const SetShares& move) {
  Strategy changed = strategy;
  StageSpec& spec = changed.stages[at(move.stage)];
  const StageSpec before = spec;
  if (move.rule == ShareRule::kBySpeed) {
    balance(changed, {move.stage});
  } else {
    set_group(spec, equal_stage(problem_, before.devices,
                                largest_micro_batch(problem_, strategy.micro_batches)));
  }
  if (spec.shares == before.shares && spec.devices == before.devices) return std::nullopt;
  if (spec.devices != before.devices) changed.buckets.clear();
  return changed;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy,
                                                const SetMicroBatches& move) {
  Strategy changed = strategy;
  changed.micro_batches = move.count;
  if (move.in_proportion) {
    for (StageSpec& spec : changed.stages) {
      spec.odd = kNone;
      spec.shares = largest_remainder(largest_micro_batch(problem_, move.count),
                                      std::vector<double>(spec.shares.begin(), spec.shares.end()));
      leave_out_idle(spec);
    }
    return changed;
  }
  std::vector<int> all(strategy.stages.size());
  std::iota(all.begin(), all.end(), 0);
  return balanced(std::move(changed), all);
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const SetSchedule& move) {
  if (move.schedule == strategy.schedule) return std::nullopt;
  Strategy changed = strategy;
  changed.schedule = move.schedule;
  return changed;
}

StrategyMoves::Changed StrategyMoves::result_of(const Strategy& strategy, const SetMemory& move) {
  Strategy changed = strategy;
  for (std::size_t s = 0; s < changed.stages.size(); ++s) {
    if (move.stage != kAllStages && move.stage != static_cast<int>(s)) continue;
    StageSpec& spec = changed.stages[s];
    spec.recompute = move.recompute.value_or(spec.recompute);
    if (move.state_in_host && *move.state_in_host != spec.state_in_host) {
      spec.state_in_host = *move.state_in_host;
      forget_parts(changed, static_cast<int>(s));
    }
    const StateLevel state = move.state.value_or(spec.state);
    if (spec.devices.size() < 2 || state == spec.state) continue;
    const bool groups = std::max(state, spec.state) >= StateLevel::kGradients;
    spec.state = state;
    forget_parts(changed, static_cast<int>(s));
    if (groups) changed.buckets.clear();  // where gradients are divided, buckets are others
  }
  if (move.in_flight) {
    change_in_flight(*move.in_flight, move.stage, changed);
    fit_in_flight(changed);
  }
  if (changed.stages == strategy.stages && changed.schedule == strategy.schedule) {
    return std::nullopt;
  }
  fit_flows(changed);  // a stage that divides its state has none
  for (std::size_t s = 0; s < changed.stages.size(); ++s) {
    if (changed.stages[s].state == strategy.stages[s].state) continue;
    choose_algorithms(problem_, static_cast<int>(s), changed);
  }
  return changed;
}

}  // namespace agpcs
