// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timer.h"

namespace agpcs {

StageTimer::StageTimer(const Problem& problem, std::vector<OpId> ops)
    : problem_(&problem), ops_(std::move(ops)) {}

const StageTimer::Seconds& StageTimer::both(int kind, std::int64_t samples) {
  const auto [entry, added] = known_.emplace(std::pair(kind, samples), Seconds());
  if (!added) return entry->second;
  for (const OpId op : ops_) {
    const OpSeconds s = problem_->costs.seconds(kind, op, samples);
    entry->second.sum += s.forward + s.backward;
    entry->second.forward += s.forward;
  }
  return entry->second;
}

}  // namespace agpcs
