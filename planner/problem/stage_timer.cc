// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timer.h"

#include "ir/base/at.h"

namespace agpcs {
namespace {

/// The most operators whose seconds are remembered; beyond, all are forgotten.
constexpr std::size_t kMostOperators = std::size_t{1} << 22;
/// The most shares that a timer remembers; beyond, all are forgotten.
constexpr std::size_t kMostShares = 1024;

}  // namespace

const std::vector<OpSeconds>& OperatorTimes::of(int kind, std::int64_t samples) {
  const std::uint64_t key =
      static_cast<std::uint64_t>(samples) << 16 | static_cast<std::uint64_t>(kind);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const std::size_t operators = problem_.graph.ops.size();
  if (known_.size() * operators > kMostOperators) known_.clear();
  std::vector<OpSeconds>& times = known_[key];
  times.reserve(operators);
  for (OpId op = 0; op < static_cast<OpId>(operators); ++op) {
    times.push_back(problem_.costs.seconds(kind, op, samples));
  }
  return times;
}

StageTimer::StageTimer(const Problem& problem, std::vector<OpId> ops, OperatorTimes* times)
    : problem_(&problem), ops_(std::move(ops)), times_(times) {}

std::vector<StageTimer::ShareRun>& StageTimer::known_shares(const std::vector<KindRun>& kinds,
                                                            std::int64_t samples) {
  if (shares_.size() > kMostShares) shares_.clear();
  return shares_[{samples, kinds}];
}

const StageTimer::Seconds& StageTimer::both(int kind, std::int64_t samples) {
  const auto [entry, added] = known_.emplace(std::pair(kind, samples), Seconds());
  if (!added) return entry->second;
  Seconds& seconds = entry->second;
  const auto add = [&](const OpSeconds& s) {
    seconds.sum += s.forward + s.backward;
    seconds.forward += s.forward;
  };
  if (times_ != nullptr) {
    const std::vector<OpSeconds>& times = times_->of(kind, samples);
    for (const OpId op : ops_) add(times[at(op)]);
  } else {
    for (const OpId op : ops_) add(problem_->costs.seconds(kind, op, samples));
  }
  return seconds;
}

}  // namespace agpcs
