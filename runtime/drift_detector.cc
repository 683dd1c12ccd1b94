// SPDX-License-Identifier: Apache-2.0
// The test is Page's cumulative sum in the form of Hinkley (E. S. Page, "Continuous inspection
// schemes", Biometrika 1954; D. V. Hinkley, Biometrika 1971), on logarithms, so that twice and half
// as fast count alike. Of each exchange at most `clip_` enters a sum: two exchanges, however bad,
// raise no alarm.
#include "ir/check.h"
#include "runtime/drift_expectation.h"
#include "runtime/flat_program.h"

#include <agpcs/drift.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace agpcs {
namespace {

/// Of the threshold.
constexpr double kClip = 0.45;
/// Exchanges whose median sets a reference, and after how many communication has a first one.
constexpr std::size_t kLearned = 8, kFirstLearned = 3;
/// Exchanges that the size of a change is told from, at most.
constexpr std::size_t kRecent = 8;
/// For so many exchanges a change of computing explains changes of communication; communication
/// waits for so many where computing might be about to change.
constexpr std::int64_t kExplains = 6;
constexpr int kHeld = 2;

double median_of(std::vector<double> values) {
  AGPCS_CHECK(!values.empty(), "median of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

std::string describe(const Plan& plan, const DriftChange& change) {
  std::string what, more;
  if (change.quantity == Quantity::kCompute) {
    what = fmt::format("{} computes", device_of_rank(plan, change.rank));
    more = change.factor > 1 ? "slower" : "faster";
  } else {
    const int stage = plan.stage_of_rank(change.rank);
    what = change.quantity == Quantity::kAllReduce
               ? fmt::format("all-reduces of {} take",
                             plan.stages[static_cast<std::size_t>(stage)].name)
               : fmt::format("sends of {} take", device_of_rank(plan, change.rank));
    more = change.factor > 1 ? "longer" : "shorter";
  }
  const double times = change.factor > 1 ? change.factor : 1 / std::max(change.factor, 1e-6);
  if (times < 1.1) return fmt::format("{} as expected again since step {}", what, change.since);
  return fmt::format("{} {:.3g} times {} than expected since step {}", what, times, more,
                     change.since);
}

DriftDetector::DriftDetector(const Plan& plan, const DriftOptions& options)
    : dead_zone_(std::log(options.tolerance)),
      clip_(kClip * options.threshold),
      threshold_(options.threshold),
      every_(plan.training.statistics_every) {
  AGPCS_CHECK(options.tolerance > 1 && options.threshold > 0, "tolerance {}, threshold {}",
              options.tolerance, options.threshold);
  if (every_ <= 0) return;
  const int ranks = plan.rank_count();
  for (int q = 0; q < kQuantityCount; ++q) {
    for (int rank = 0; rank < ranks; ++rank) watch(plan, rank, static_cast<Quantity>(q));
  }
  const double step = ranks > 0 ? step_seconds(plan) : 0;
  const double between = step * static_cast<double>(every_);
  if (between > 0) threshold_ *= std::max(1.0, options.exchange_seconds / between);
}

void DriftDetector::watch(const Plan& plan, int rank, Quantity quantity) {
  const RankExpectation expectation = expectation_of(plan, rank);
  const double seconds = expectation.seconds[static_cast<std::size_t>(quantity)];
  const int stage = plan.stage_of_rank(rank);
  const PlanStage& of = plan.stages[static_cast<std::size_t>(stage)];
  const bool shared = quantity == Quantity::kAllReduce;
  if (seconds <= 0 || (shared && rank != of.ranks.front())) return;
  Series series;
  series.quantity = quantity;
  series.stage = stage;
  series.ranks = shared ? of.ranks : std::vector<int>{rank};
  series.expected_seconds = seconds;
  series.floor_seconds = expectation.floor;
  series_.push_back(std::move(series));
}

std::vector<DriftChange> DriftDetector::add(std::int64_t step,
                                            const std::vector<RankStatistics>& by_rank) {
  if (++exchanges_ == 1) return {};  // its steps warmed up
  for (Series& series : series_) {
    double least = 0;
    for (std::size_t i = 0; i < series.ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(series.ranks[i]);
      AGPCS_CHECK(rank < by_rank.size(), "figures of {} ranks, of rank {} none", by_rank.size(),
                  rank);
      const double value = by_rank[rank][static_cast<std::size_t>(series.quantity)];
      least = i == 0 ? value : std::min(least, value);
    }
    observe(series, std::isfinite(least) ? least : series.reference, step - every_);
  }
  std::vector<DriftChange> changes;
  // Those of computing come first, and explain others.
  for (Series& series : series_) {
    if (settle(series)) changes.push_back(change_of(series));
  }
  established_.clear();
  for (const Series& series : series_) {
    if (series.established) established_.push_back(change_of(series));
  }
  return changes;
}

void DriftDetector::observe(Series& series, double value, std::int64_t first_step) const {
  if (series.recent.size() == kRecent) series.recent.erase(series.recent.begin());
  series.recent.push_back(value);
  const bool tested = series.quantity == Quantity::kCompute || !series.first ||
                      series.learned.size() >= kFirstLearned;
  if (tested) {
    const double off = value - series.reference;
    const auto sum_up = [&](Sum& sum, double beyond) {
      if (sum.value <= 0) sum = {0, first_step, 0};
      sum.value = std::max(0.0, sum.value + std::clamp(beyond - dead_zone_, -dead_zone_, clip_));
      ++sum.exchanges;
    };
    sum_up(series.up, off);
    sum_up(series.down, -off);
  }
  if (series.learning) learn(series, value);
}

void DriftDetector::learn(Series& series, double value) const {
  series.learned.push_back(value);
  const bool computes = series.quantity == Quantity::kCompute;
  if (series.first && !computes && series.learned.size() == kFirstLearned) {
    series.reference = series.normal = median_of(series.learned);
  }
  if (series.learned.size() < kLearned) return;
  // Within the dead zone of what it was before: a larger step is for the test to find.
  const double median = median_of(series.learned);
  series.reference =
      std::clamp(median, series.reference - dead_zone_, series.reference + dead_zone_);
  if (series.first) series.normal = series.reference;
  series.first = series.learning = false;
  series.learned.clear();
}

bool DriftDetector::alarms(Series& series) const {
  return std::max(series.up.value, series.down.value) > threshold_;
}

// Moves the reference to where the series is since the sum left 0; false when that is where it was.
bool DriftDetector::establish(Series& series) const {
  const Sum sum = series.up.value > threshold_ ? series.up : series.down;
  const std::size_t count = std::min(sum.exchanges, series.recent.size());
  std::vector<double> values(series.recent.end() - static_cast<std::ptrdiff_t>(count),
                             series.recent.end());
  double level = median_of(values);
  if (std::abs(level - series.reference) <= dead_zone_) {
    // Some exchanges are much off, the others are not: what they amount to, each within bounds.
    const double most = dead_zone_ + clip_;
    level = 0;
    for (const double value : values) {
      level += std::clamp(value, series.reference - most, series.reference + most);
    }
    level /= static_cast<double>(values.size());
  }
  series.up = series.down = {};
  series.held = 0;
  if (std::abs(level - series.reference) <= dead_zone_) return false;
  series.change = level - series.reference;
  series.changed_in = exchanges_;
  series.since = sum.since;
  series.reference = level;
  series.first = false;
  series.learning = true;
  series.learned.clear();
  return true;
}

// A slow device keeps those that exchange something with it waiting, and is slow to send itself.
bool DriftDetector::is_explained(const Series& series) const {
  for (const Series& other : series_) {
    if (other.quantity != Quantity::kCompute || other.changed_in == 0 ||
        exchanges_ - other.changed_in >= kExplains) {
      continue;
    }
    if (series.quantity == Quantity::kSend) return true;
    if (other.stage == series.stage &&
        std::abs(series.change) <= std::abs(other.change) + dead_zone_) {
      return true;
    }
  }
  return false;
}

bool DriftDetector::is_held(Series& series) const {
  if (series.quantity == Quantity::kCompute || series.held >= kHeld) return false;
  const bool computing = std::any_of(series_.begin(), series_.end(), [&](const Series& other) {
    return other.quantity == Quantity::kCompute &&
           std::max(other.up.value, other.down.value) > threshold_ / 4;
  });
  if (computing) ++series.held;
  return computing;
}

// Whether there is a change to tell.
bool DriftDetector::settle(Series& series) {
  if (!alarms(series) || is_held(series) || !establish(series)) return false;
  const bool before = series.established;
  const bool normal = std::abs(series.reference - series.normal) <= dead_zone_;
  if (!normal && series.quantity != Quantity::kCompute && is_explained(series)) return false;
  series.established = !normal;
  return before || series.established;
}

DriftChange DriftDetector::change_of(const Series& series) const {
  const auto seconds = [&](double log) {
    return std::exp(log) * (series.expected_seconds + series.floor_seconds) - series.floor_seconds;
  };
  constexpr double kLeast = 1e-3;  // of what is expected: no more can be told
  const double least = kLeast * series.expected_seconds;
  const double factor =
      std::max(seconds(series.reference), least) / std::max(seconds(series.normal), least);
  return {series.quantity, series.ranks.front(), factor, series.since};
}

void DriftDetector::accept() {
  for (Series& series : series_) {
    series.up = series.down = {};
    series.held = 0;
    if (!series.established) continue;
    series.learning = true;
    series.learned.clear();
  }
}

}  // namespace agpcs
