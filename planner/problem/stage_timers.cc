// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timers.h"

#include "ir/base/at.h"
#include "planner/problem/hash.h"
#include "planner/problem/stage_timer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace agpcs {
namespace {

/// The most operators of remembered timers.
constexpr std::size_t kMostTimedOperators = std::size_t{1} << 24;

/// Returns whether the operators of `timer` are those of `stage`, which has as many.
bool is_of_stage(const StageTimer& timer, const std::vector<int>& stage_of, int stage) {
  return std::ranges::all_of(timer.ops(), [&](OpId op) { return stage_of[at(op)] == stage; });
}

/// Returns a number that says little about the operator, so that sums of several tell sets apart.
std::uint64_t mark_of(std::size_t op) {
  return mix(mix(0x94d049bb133111ebULL, op), 0xbf58476d1ce4e5b9ULL);
}

}  // namespace

const std::vector<StageTimer*>& StageTimers::of(const Strategy& strategy) {
  const auto same = [&](const Partition& known) { return known.stage_of == strategy.stage_of; };
  const auto found = std::find_if(recent_.begin(), recent_.end(), same);
  if (found != recent_.end() && found->timers.size() == strategy.stages.size()) {
    last_ = static_cast<std::size_t>(found - recent_.begin());
    return found->timers;
  }
  std::vector<StageTimer*> timers = timers_of(strategy, recent_[last_]);
  last_ = (last_ + 1) % recent_.size();
  recent_[last_] = {strategy.stage_of, std::move(timers)};
  return recent_[last_].timers;
}

/// Takes over the timers of stages whose operators are those of `last`, and looks up the others.
std::vector<StageTimer*> StageTimers::timers_of(const Strategy& strategy, const Partition& last) {
  const std::vector<int>& stage_of = strategy.stage_of;
  std::vector<char> changed(strategy.stages.size(), 1);
  if (last.timers.size() == changed.size() && last.stage_of.size() == stage_of.size()) {
    std::fill(changed.begin(), changed.end(), 0);
    for (std::size_t op = 0; op < stage_of.size(); ++op) {
      if (stage_of[op] == last.stage_of[op]) continue;
      changed[at(stage_of[op])] = 1;
      changed[at(last.stage_of[op])] = 1;
    }
  }
  std::vector<Marked> marked(changed.size());
  for (std::size_t op = 0; op < stage_of.size();) {  // most stages are a few runs of operators
    const int stage = stage_of[op];
    const std::size_t first = op;
    std::uint64_t sum = 0;
    for (; op < stage_of.size() && stage_of[op] == stage; ++op) sum += mark_of(op);
    marked[at(stage)].ops += op - first;
    marked[at(stage)].sum += sum;
  }
  std::vector<StageTimer*> timers;
  timers.reserve(changed.size());
  for (std::size_t s = 0; s < changed.size(); ++s) {
    timers.push_back(changed[s] ? &of(stage_of, static_cast<int>(s), marked[s]) : last.timers[s]);
  }
  return timers;
}

/// Looks up the timer of a stage, or makes it.
StageTimer& StageTimers::of(const std::vector<int>& stage_of, int stage, const Marked& marked) {
  const auto [begin, end] = known_.equal_range(marked.sum);
  for (auto it = begin; it != end; ++it) {
    StageTimer& timer = *it->second;
    if (timer.ops().size() == marked.ops && is_of_stage(timer, stage_of, stage)) return timer;
  }
  std::vector<OpId> ops;
  ops.reserve(marked.ops);
  for (OpId op = 0; op < static_cast<OpId>(stage_of.size()); ++op) {
    if (stage_of[at(op)] == stage) ops.push_back(op);
  }
  remembered_ += ops.size();
  return *known_
              .emplace(marked.sum, std::make_unique<StageTimer>(problem_, std::move(ops), times_))
              ->second;
}

void StageTimers::forget_if_many() {
  if (remembered_ < kMostTimedOperators) return;
  recent_ = {};
  known_.clear();
  remembered_ = 0;
}

}  // namespace agpcs
