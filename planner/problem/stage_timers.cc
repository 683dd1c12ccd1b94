// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timers.h"

#include "ir/base/at.h"
#include "planner/problem/hash.h"
#include "planner/problem/stage_timer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace agpcs {
namespace {

/// The most bytes of remembered timers.
constexpr std::size_t kMostBytes = std::size_t{1} << 27;

/// Returns whether the operators of `timer` are those of `stage`, which has as many.
bool is_of_stage(const StageTimer& timer, const std::vector<int>& stage_of, int stage) {
  return std::ranges::all_of(timer.ops(), [&](OpId op) { return stage_of[at(op)] == stage; });
}

/// Returns a number that says little about the operator, so that sums of several tell sets apart.
std::uint64_t mark_of(std::size_t op) {
  return mix(mix(0x94d049bb133111ebULL, op), 0xbf58476d1ce4e5b9ULL);
}

}  // namespace

StageTimers::StageTimers(const Problem& problem, OperatorTimes* times)
    : problem_(problem), times_(times), marks_(problem.graph.ops.size() + 1) {
  for (std::size_t op = 0; op < problem.graph.ops.size(); ++op) {
    marks_[op + 1] = marks_[op] + mark_of(op);
  }
}

const std::vector<StageTimer*>& StageTimers::of(const Strategy& strategy) {
  const auto same = [&](const Partition& known) { return known.stage_of == strategy.stage_of; };
  const auto found = std::find_if(recent_.begin(), recent_.end(), same);
  if (found != recent_.end() && found->timers.size() == strategy.stages.size()) {
    last_ = static_cast<std::size_t>(found - recent_.begin());
    return found->timers;
  }
  find_timers(strategy, recent_[last_], next_.timers);
  next_.stage_of = strategy.stage_of;
  last_ = (last_ + 1) % recent_.size();
  std::swap(recent_[last_], next_);
  return recent_[last_].timers;
}

/// Takes over the timers of stages whose operators are those of `last`, and looks up the others.
void StageTimers::find_timers(const Strategy& strategy, const Partition& last,
                              std::vector<StageTimer*>& timers) {
  const std::vector<int>& stage_of = strategy.stage_of;
  changed_.assign(strategy.stages.size(), 1);
  if (last.timers.size() == changed_.size() && last.stage_of.size() == stage_of.size()) {
    std::fill(changed_.begin(), changed_.end(), 0);
    for (std::size_t op = 0; op < stage_of.size(); ++op) {
      if (stage_of[op] == last.stage_of[op]) continue;
      changed_[at(stage_of[op])] = 1;
      changed_[at(last.stage_of[op])] = 1;
    }
  }
  marked_.assign(changed_.size(), {});
  for (std::size_t op = 0; op < stage_of.size();) {  // most stages are a few runs of operators
    const int stage = stage_of[op];
    const std::size_t first = op;
    while (op < stage_of.size() && stage_of[op] == stage) ++op;
    Marked& marked = marked_[at(stage)];
    if (marked.ops == 0) marked.first = first;
    marked.ops += op - first;
    marked.sum += marks_[op] - marks_[first];
    marked.end = op;
  }
  timers.clear();
  timers.reserve(changed_.size());
  for (std::size_t s = 0; s < changed_.size(); ++s) {
    timers.push_back(changed_[s] ? &of(stage_of, static_cast<int>(s), marked_[s]) : last.timers[s]);
  }
}

/// Looks up the timer of a stage, or makes it.
StageTimer& StageTimers::of(const std::vector<int>& stage_of, int stage, const Marked& marked) {
  const auto [begin, end] = known_->timers.equal_range(marked.sum);
  for (auto it = begin; it != end; ++it) {
    StageTimer& timer = it->second;
    if (timer.ops().size() == marked.ops && is_of_stage(timer, stage_of, stage)) return timer;
  }
  ops_.clear();
  for (std::size_t op = marked.first; op < marked.end; ++op) {
    if (stage_of[op] == stage) ops_.push_back(static_cast<OpId>(op));
  }
  StageTimer timer(problem_, ops_, times_, &known_->memory);
  return known_->timers.emplace(marked.sum, std::move(timer))->second;
}

void StageTimers::forget_if_many() {
  if (known_->memory.bytes() < kMostBytes) return;
  recent_ = {};
  known_ = std::make_unique<Known>();
}

}  // namespace agpcs
