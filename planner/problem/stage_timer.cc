// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timer.h"

#include "ir/base/at.h"
#include "ir/strategy/weight_pass.h"

#include <algorithm>

namespace agpcs {
namespace {

/// The most operators whose seconds are remembered; beyond, all are forgotten.
constexpr std::size_t kMostOperators = std::size_t{1} << 22;
/// The most shares that a timer remembers; beyond, all are forgotten.
constexpr std::size_t kMostShares = 1024;

}  // namespace

void add(const GradientSize& gradient, GradientSum& sum) {
  sum.bytes += gradient.travelling_bytes;
  sum.held_bytes += gradient.held_bytes;
  sum.rounded_bytes += gradient.rounded_bytes;
  sum.elements += gradient.elements;
  ++sum.tensors;
}

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

StageTimer::StageTimer(const Problem& problem, std::span<const OpId> ops, OperatorTimes* times,
                       std::pmr::memory_resource* memory)
    : problem_(&problem),
      times_(times),
      ops_(ops.begin(), ops.end(), memory),
      known_(memory),
      weights_(memory),
      shares_(memory) {}

std::pmr::vector<StageTimer::ShareRun>& StageTimer::known_shares(std::span<const KindRun> kinds,
                                                                 std::int64_t samples) {
  for (KnownShares& known : shares_) {
    if (known.samples == samples && std::ranges::equal(known.kinds, kinds)) return known.shares;
  }
  if (shares_.size() > kMostShares) shares_.clear();
  const auto memory = shares_.get_allocator();
  shares_.push_back(
      {samples, {kinds.begin(), kinds.end(), memory}, std::pmr::vector<ShareRun>(memory)});
  return shares_.back().shares;
}

StageTimer::Seconds StageTimer::both(int kind, std::int64_t samples) {
  const std::pair of(kind, samples);
  const auto place =
      std::lower_bound(known_.begin(), known_.end(), of,
                       [](const KnownSeconds& known, const auto& key) { return known.of < key; });
  if (place != known_.end() && place->of == of) return place->seconds;
  Seconds seconds;
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
  known_.insert(place, {of, seconds});
  return seconds;
}

double StageTimer::weight_seconds(int kind, std::int64_t samples) {
  const std::pair of(kind, samples);
  for (const KnownWeight& known : weights_) {
    if (known.of == of) return known.seconds;
  }
  double seconds = 0;
  for (const OpId op : ops_) {
    const double part = weight_part(problem_->graph, op);
    if (part > 0) seconds += part * problem_->costs.seconds(kind, op, samples).backward;
  }
  weights_.push_back({of, seconds});
  return seconds;
}

}  // namespace agpcs
