// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timers.h"

#include "planner/problem/hash.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"

#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kMostOperators = std::size_t{1} << 24;

}  // namespace

std::vector<StageTimer*> StageTimers::of(const Strategy& strategy) {
  std::vector<StageTimer*> timers;
  const int stages = static_cast<int>(strategy.stages.size());
  for (std::vector<OpId>& ops : ops_of_stages(strategy.stage_of, stages)) {
    timers.push_back(&of(std::move(ops)));
  }
  return timers;
}

StageTimer& StageTimers::of(std::vector<OpId> ops) {
  const std::uint64_t hash = hash_of(ops);
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->ops == ops) return it->second->timer;
  }
  remembered_ += ops.size();
  StageTimer timer(problem_, ops);
  auto known = std::make_unique<Known>(Known{std::move(ops), std::move(timer)});
  return known_.emplace(hash, std::move(known))->second->timer;
}

void StageTimers::forget_if_many() {
  if (remembered_ < kMostOperators) return;
  known_.clear();
  remembered_ = 0;
}

}  // namespace agpcs
