// SPDX-License-Identifier: Apache-2.0
// The test is Page's cumulative sum in the form of Hinkley (E. S. Page, "Continuous inspection
// schemes", Biometrika 1954; D. V. Hinkley, Biometrika 1971). It works on logarithms, so that
// twice and half as fast count alike. An exchange adds at most `clip_` to a sum: two exchanges,
// however bad, raise no alarm. docs/design/reliability.md, "Drift", explains the threshold and the
// common part.
#include "ir/base/check.h"
#include "ir/base/median.h"
#include "ir/plan/rounds/rank_stages.h"
#include "runtime/job/drift/expectation.h"
#include "runtime/job/drift/points.h"
#include "runtime/replay/resolved_program.h"

#include <agpcs/drift.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

/// An exchange adds at most this part of the threshold to a sum.
constexpr double kClip = 0.45;
/// Numbers of exchanges whose median sets a reference: 8; for the first reference, as few as 3 if
/// they are alike, and up to kMostLearned if they are noisy.
constexpr std::size_t kAlike = 3, kLearned = 8;
/// A change of computing explains changes of communication that began within kAtATime exchanges of
/// it. An alarm of communication is held back for up to kHeld exchanges while computing might be
/// about to change.
constexpr std::int64_t kAtATime = 2;
constexpr int kHeld = 2;
/// A sum must reach kAboveNoise times the height that noise reached in the last kRemembered
/// exchanges, but at most kMostThresholds thresholds.
constexpr double kAboveNoise = 2, kMostThresholds = 8;
constexpr std::int64_t kRemembered = 1000;
/// The first noise height of sums is this times the deviation of the first exchanges.
constexpr double kFirstNoise = 3;
/// A change that goes away within this many exchanges was noise.
constexpr std::int64_t kMoment = 12;

/// Returns the second largest distance from the median, since a single outlier says nothing.
double second_largest_off(const std::vector<double>& values) {
  const double normal = median(values);
  std::vector<double> off;
  for (const double value : values) off.push_back(std::abs(value - normal));
  std::sort(off.begin(), off.end());
  return off[off.size() - 2];
}

bool is_quiet(const std::vector<double>& values, double dead_zone) {
  if (values.size() >= kLearned) return second_largest_off(values) <= dead_zone;
  if (values.size() < kAlike) return false;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *most - *least <= dead_zone / 2;
}

/// Returns the median; for an even number of values, the value nearest to 0 between the middle two:
/// of two devices, the one that is off has changed.
double middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return std::clamp(0.0, values[(values.size() - 1) / 2], values[values.size() / 2]);
}

/// Returns the ranks of the stages of a program and of those that exchange activations with them.
std::vector<int> ranks_around(const Plan& plan, int program) {
  const int first = plan.programs[static_cast<std::size_t>(program)].stage;
  std::vector<int> ranks = plan.stages[static_cast<std::size_t>(first)].all_ranks();
  for (const Cut& cut : plan.cuts) {
    if (is_local(plan, cut)) continue;
    const bool sends = plan.program_of(cut.from) == program;
    if (!sends && plan.program_of(cut.to) != program) continue;
    const int other = sends ? cut.to : cut.from;
    const std::vector<int> more = plan.stages[static_cast<std::size_t>(other)].all_ranks();
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  return ranks;
}

}  // namespace

DriftDetector::DriftDetector(const Plan& plan, const DriftOptions& options)
    : ranks_(plan.rank_count()),
      dead_zone_(std::log(options.tolerance)),
      clip_(kClip * options.threshold),
      threshold_(options.threshold),
      every_(plan.training.statistics_every) {
  AGPCS_CHECK(options.tolerance > 1 && options.threshold > 0, "tolerance {}, threshold {}",
              options.tolerance, options.threshold);
  if (every_ <= 0) return;
  for (int q = 0; q < kQuantityCount; ++q) {
    for (int rank = 0; rank < ranks_; ++rank) watch(plan, rank, static_cast<Quantity>(q));
  }
  const double step = ranks_ > 0 ? step_seconds(plan) : 0;
  const double between = step * static_cast<double>(every_);
  if (between <= 0) return;
  threshold_ *= std::max(1.0, options.exchange_seconds / between);
  lasting_ = options.work_seconds / between;
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
  series.idle = of.idle();
  series.ranks = shared ? of.ranks : std::vector<int>{rank};
  series.ends =
      quantity == Quantity::kSend ? ranks_around(plan, plan.program_of(stage)) : series.ranks;
  series.expected_seconds = seconds;
  series.floor_seconds = expectation.floor;
  series_.push_back(std::move(series));
}

std::vector<DriftChange> DriftDetector::add(std::int64_t step,
                                            const std::vector<RankStatistics>& by_rank) {
  if (++exchanges_ == 1) return {};  // the steps before it were warm-up
  read(by_rank);
  std::vector<DriftChange> changes;
  const bool compared = is_learned(Quantity::kCompute);
  common_wall_ = compared ? in_common([](const Series& series) { return series.now.wall; }) : 0;
  common_own_ = compared ? in_common(own_of) : 0;
  common_work_ =
      compared ? in_common([](const Series& series) { return series.reference + series.now.work; })
               : 0;
  for (int q = 0; q < kQuantityCount; ++q) {
    const auto quantity = static_cast<Quantity>(q);
    const bool learned = is_learned(quantity);
    if (!learned) learn_normal(quantity);
    for (Series& series : series_) {
      if (series.quantity == quantity && (learned || series.idle)) observe(series, step - every_);
    }
  }
  if (!compared && is_learned(Quantity::kCompute)) changes = compare_with_plan(step);
  // Changes of computing come first, because they explain others.
  for (Series& series : series_) {
    if (settle(series)) changes.push_back(change_of(series));
  }
  list_established();
  return changes;
}

void DriftDetector::read(const std::vector<RankStatistics>& by_rank) {
  for (Series& series : series_) {
    double least = 0;
    for (std::size_t i = 0; i < series.ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(series.ranks[i]);
      AGPCS_CHECK(rank < by_rank.size(), "figures of {} ranks, of rank {} none", by_rank.size(),
                  rank);
      const double value = by_rank[rank].ratios[static_cast<std::size_t>(series.quantity)];
      least = i == 0 ? value : std::min(least, value);
    }
    series.measured = std::isfinite(least);
    series.now.wall = series.measured ? least : series.reference;
    if (series.quantity == Quantity::kCompute) {
      read_clock(series, by_rank[static_cast<std::size_t>(series.ranks.front())]);
    }
  }
}

// Sets what is normal for all series of a quantity at once; communication waits for computing.
void DriftDetector::learn_normal(Quantity quantity) {
  std::size_t count = 0;
  bool quiet = quantity == Quantity::kCompute || is_learned(Quantity::kCompute);
  for (Series& series : series_) {
    if (series.quantity != quantity || series.idle) continue;
    if (series.learned.size() == kMostLearned) series.learned.erase(series.learned.begin());
    series.learned.push_back(series.now);
    count = series.learned.size();
    series.steady = is_quiet(all_of(series.learned, &Point::wall), dead_zone(quantity));
    const bool held = series.clocked && is_quiet(held_of(series.learned), dead_zone_);
    quiet = quiet && (series.steady || held);
  }
  if (count > 0 && count < kMostLearned && !quiet) return;
  for (Series& series : series_) {
    if (series.quantity != quantity || series.idle) continue;
    double off = second_largest_off(all_of(series.learned, &Point::wall));
    if (series.clocked) {
      off = std::min(off, second_largest_off(held_of(series.learned)));
    }
    note_noise(quantity, kFirstNoise * off);
    series.normal = series.reference = median(all_of(series.learned, &Point::wall));
    learn_clock(series);
    series.learned.clear();  // the reference is now learned again, from more exchanges
  }
  learned_[static_cast<std::size_t>(quantity)] = true;
}

// Finds devices that are far off the others from the beginning.
std::vector<DriftChange> DriftDetector::compare_with_plan(std::int64_t step) {
  std::vector<double> off, own_off;
  for (const Series& series : series_) {
    if (series.quantity != Quantity::kCompute || series.idle) continue;
    off.push_back(series.reference);
    own_off.push_back(series.own);
  }
  if (off.size() < 2) return {};
  const double common = middle_of(std::move(off)), common_own = middle_of(std::move(own_off));
  const auto is_off = [&](double value) { return std::abs(value) > 2 * dead_zone_; };
  std::vector<DriftChange> changes;
  for (Series& series : series_) {
    if (series.quantity != Quantity::kCompute || series.idle) continue;
    if (!is_off(series.reference - common)) continue;
    if (series.clocked && !is_off(series.own - common_own)) continue;  // it is other work
    series.normal = common;
    series.since = std::max<std::int64_t>(0, step - (exchanges_ - 1) * every_);
    series.established = true;
    changes.push_back(change_of(series));
  }
  return changes;
}

double DriftDetector::in_common(double (*value)(const Series&)) const {
  std::vector<double> off;
  for (const Series& series : series_) {
    if (series.quantity != Quantity::kCompute || !series.measured) continue;
    off.push_back(value(series) - series.reference);
  }
  return off.size() < 2 ? 0 : middle_of(std::move(off));
}

double DriftDetector::dead_zone(Quantity quantity) const {
  return quantity == Quantity::kCompute ? dead_zone_ : 2 * dead_zone_;
}

void DriftDetector::observe(Series& series, std::int64_t first_step) {
  const bool computes = series.quantity == Quantity::kCompute;
  if (!series.measured || (!computes && !have_processors(series))) return;
  if (series.excused > 0) return take_excused(series);
  const double off = off_of(series);
  if (series.recent.size() == kRecent) series.recent.erase(series.recent.begin());
  Point point = series.now;
  point.value = series.reference + off;
  if (computes) {
    point.wall -= common_wall_;
    point.own -= common_own_;
    point.work -= common_work_;
  }
  series.recent.push_back(point);
  add_up(series.up, series.quantity, off, first_step);
  add_up(series.down, series.quantity, -off, first_step);
  if (series.learning) relearn(series);
  if (!computes) return;
  follow_clock(series);
  follow_work(series, first_step);
}

void DriftDetector::add_up(Sum& sum, Quantity quantity, double off, std::int64_t first_step) {
  if (sum.value <= 0) sum = {0, 0, first_step, exchanges_, 0};
  ++sum.points;
  const double dead = dead_zone(quantity);
  sum.value = std::max(0.0, sum.value + std::clamp(off - dead, -dead, clip_));
  sum.peak = std::max(sum.peak, sum.value);
  if (sum.value <= 0 && sum.peak > 0) note_noise(quantity, sum.peak);
}

void DriftDetector::note_noise(Quantity quantity, double height) {
  std::vector<Height>& heights = noise_[static_cast<std::size_t>(quantity)];
  while (!heights.empty() && heights.back().height <= height) heights.pop_back();
  heights.push_back({exchanges_, height});
  const auto old = std::find_if(heights.begin(), heights.end(), [&](const Height& reached) {
    return exchanges_ - reached.exchange < kRemembered;
  });
  heights.erase(heights.begin(), old);
}

double DriftDetector::threshold(Quantity quantity) const {
  const std::vector<Height>& heights = noise_[static_cast<std::size_t>(quantity)];
  const auto highest = std::find_if(heights.begin(), heights.end(), [&](const Height& reached) {
    return exchanges_ - reached.exchange < kRemembered;
  });
  const double noise = highest == heights.end() ? 0 : highest->height;
  return std::clamp(kAboveNoise * noise, threshold_, kMostThresholds * threshold_);
}

// Sets the reference anew, within the dead zone of the old one: finding a larger step is the
// test's task.
void DriftDetector::relearn(Series& series) const {
  series.learned.push_back(series.recent.back());
  if (series.learned.size() < kLearned) return;
  const double dead = dead_zone(series.quantity);
  const bool first = series.clocked && series.changed_in == 0;
  const double level = median(all_of(series.learned, first ? &Point::wall : &Point::value));
  series.reference = std::clamp(level, series.reference - dead, series.reference + dead);
  if (first) {
    series.steady = is_quiet(all_of(series.learned, &Point::wall), dead);
    learn_clock(series);
  }
  series.learning = false;
  series.learned.clear();
}

// Moves the reference to the level of the series since the sum left 0. Returns false if that is
// within the dead zone of the old reference.
bool DriftDetector::establish(Series& series) {
  const double dead = dead_zone(series.quantity);
  const bool rises = series.up.value > series.down.value;
  const Sum sum = rises ? series.up : series.down;
  const std::size_t count = std::min(sum.points, series.recent.size());
  const DriftCause cause = cause_of(series, count);
  const bool taken = cause == DriftCause::kTaken;  // which the own time shows late
  const double level = median(last_of(series.recent, count, taken ? &Point::wall : &Point::value));
  series.up = series.down = {};
  series.held = 0;
  const double change = level - series.reference;
  // Some exchanges are far off, most are not; or other work takes a little more than it did.
  if (std::abs(change) <= (taken ? 2 * dead : dead)) {
    note_noise(series.quantity, sum.peak);
    return false;
  }
  if (series.changed_in > 0 && exchanges_ - series.changed_in < kMoment &&
      (change > 0) != (series.change > 0)) {
    const auto lasted = static_cast<double>(sum.exchange - series.began_in);
    note_noise(series.quantity, lasted * std::min(clip_, std::abs(series.change) - dead));
  }
  series.cause = cause;
  move_to(series, level, sum);
  if (series.clocked) move_clock(series, count);
  return true;
}

void DriftDetector::move_to(Series& series, double level, const Sum& began) const {
  series.change = level - series.reference;
  series.changed_in = exchanges_;
  series.began_in = began.exchange;
  series.since = began.since;
  series.reference = level;
  series.learning = true;
  series.learned.clear();
}

// Returns whether a change of computing explains it: a slow device keeps those that exchange
// something with it waiting, and is slow to send itself.
bool DriftDetector::is_explained(const Series& series) const {
  for (const Series& other : series_) {
    const bool at_a_time = series.began_in >= other.began_in - kAtATime &&
                           series.began_in <= other.changed_in + kAtATime;
    const bool may_last =
        other.work.exchange > 0 && series.began_in >= other.work.exchange - kAtATime;
    if (other.quantity != Quantity::kCompute) continue;
    if (!may_last && (other.changed_in == 0 || !at_a_time)) continue;
    if (series.quantity == Quantity::kSend) return true;
    const double change = may_last ? other.work.value : other.change;
    if (other.stage == series.stage && std::abs(series.change) <= std::abs(change) + dead_zone_) {
      return true;
    }
  }
  return false;
}

bool DriftDetector::is_held(Series& series) const {
  if (series.quantity == Quantity::kCompute || series.held >= kHeld) return false;
  const bool computing = suspects_devices();
  if (computing) ++series.held;
  return computing;
}

// Returns whether there is a change to report.
bool DriftDetector::settle(Series& series) {
  const bool work = establish_work(series);
  const bool alarms = std::max(series.up.value, series.down.value) > threshold(series.quantity);
  const bool other = alarms && !is_held(series) && establish(series);
  if (!work && !other) return false;
  const bool before = series.established;
  const bool normal = std::abs(series.reference - series.normal) <= dead_zone(series.quantity);
  if (!normal && series.quantity != Quantity::kCompute && is_explained(series)) return false;
  if (series.clocked) excuse_communication(series);
  series.established = !normal;
  return before || series.established;
}

void DriftDetector::learn_communication_anew() {
  for (Series& series : series_) {
    if (series.quantity == Quantity::kCompute || series.recent.empty()) continue;
    series.up = series.down = {};
    series.held = 0;
    if (series.excused > 0) {  // the next exchanges show what it is now
      series.excuse = std::numeric_limits<double>::infinity();
      continue;
    }
    series.reference = series.recent.back().value;
    series.learning = true;
    series.learned.clear();
  }
}

void DriftDetector::accept() {
  for (Series& series : series_) {
    series.up = series.down = series.work = {};
    series.held = 0;
    if (!series.established) continue;
    series.learning = true;
    series.learned.clear();
  }
}

}  // namespace agpcs
