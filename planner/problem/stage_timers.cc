// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timers.h"

#include "ir/base/at.h"
#include "planner/problem/hash.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

/// The most operators of remembered timers.
constexpr std::size_t kMostTimedOperators = std::size_t{1} << 24;

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
  std::vector<std::vector<OpId>> ops = ops_of_stages(stage_of, changed);
  std::vector<StageTimer*> timers;
  for (std::size_t s = 0; s < changed.size(); ++s) {
    timers.push_back(changed[s] ? &of(std::move(ops[s])) : last.timers[s]);
  }
  return timers;
}

StageTimer& StageTimers::of(std::vector<OpId> ops) {
  const std::uint64_t hash = hash_of(ops);
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->ops() == ops) return *it->second;
  }
  remembered_ += ops.size();
  return *known_.emplace(hash, std::make_unique<StageTimer>(problem_, std::move(ops), times_))
              ->second;
}

void StageTimers::forget_if_many() {
  if (remembered_ < kMostTimedOperators) return;
  recent_ = {};
  known_.clear();
  remembered_ = 0;
}

}  // namespace agpcs
