// SPDX-License-Identifier: Apache-2.0
// What ranks' own clocks add to the test: whose processor was taken away, and whether links may be
// judged. docs/design/reliability.md, "Own time", explains it.
#include "ir/base/median.h"
#include "runtime/job/drift/points.h"

#include <agpcs/drift.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

/// What is true lately is a mean to which each exchange adds this part of itself: what other work
/// takes for good counts after a hundred or two hundred steps, bursts of other work hardly do.
constexpr double kOfOne = 1.0 / 64;
/// A rank has its processor unless its wall time is longer than its processor time by more than
/// lately, and by more than this factor.
constexpr double kHas = 1.25;
/// Wall times bear out changes of the own time up to this multiple of their own.
constexpr double kBorneOut = 5;
/// What else a host does makes a core so many times as fast or as slow, at most, for seconds.
constexpr double kVaries = 3;
/// Exchanges after a change of computing that show what communication takes with it.
constexpr int kExcused = 3;

/// Moves `mean` towards `value`; one exchange moves it little, however far off it is.
void follow(double& mean, double value, double most) {
  mean += kOfOne * std::clamp(value - mean, -most, most);
}

}  // namespace

void DriftDetector::read_clock(Series& series, const RankStatistics& statistics) const {
  Point& now = series.now;
  now.own = now.processor = now.wall;
  series.clocked = statistics.processor > 0;
  if (!series.clocked) return;
  const double floor = series.floor_seconds, whole = series.expected_seconds + floor;
  const double wall = std::max(std::exp(now.wall) * whole - floor, 0.0);
  const auto log_of = [&](double part) { return std::log((part * wall + floor) / whole); };
  now.own = log_of(std::min(statistics.processor + statistics.held, 1.0));
  now.processor = log_of(std::min(statistics.processor, 1.0));
  if (!is_learned(series.quantity)) return;
  now.work = now.processor - series.processor;
  now.processor = series.processor;
  now.own -= now.work;
  now.wall -= now.work;
}

// Takes what was learned as normal. A later change may be that other work takes the processor, so
// this is not learned again.
void DriftDetector::learn_clock(Series& series) const {
  std::vector<double> taken, away;
  for (const Point& point : series.learned) {
    taken.push_back(point.wall - point.own);
    away.push_back(point.wall - point.processor);
  }
  series.taken = series.normal_taken = median(std::move(taken));
  series.away = median(std::move(away));
  series.own = median(all_of(series.learned, &Point::own));
  if (!is_learned(series.quantity)) {
    series.processor = median(all_of(series.learned, &Point::processor));
  }
}

void DriftDetector::follow_clock(Series& series) const {
  if (!series.clocked) return;
  follow(series.taken, series.now.wall - series.now.own, clip_);
  follow(series.away, series.now.wall - series.now.processor, clip_);
}

// Takes the last `count` exchanges, in which a change was established, as what is true now.
void DriftDetector::move_clock(Series& series, std::size_t count) const {
  series.own = median(last_of(series.recent, count, &Point::own));
  series.away = median(last_of(series.recent, count, &Point::wall)) - series.processor;
  series.wall_off = 0;
  if (series.cause != DriftCause::kTaken) return;
  series.taken = median(last_of(series.recent, count, &Point::wall)) - series.own;
}

DriftCause DriftDetector::cause_of(const Series& series, std::size_t count) const {
  if (series.quantity != Quantity::kCompute || !series.clocked) return DriftCause::kUnknown;
  const double change = median(last_of(series.recent, count, &Point::value)) - series.reference;
  const double own = median(last_of(series.recent, count, &Point::own)) - series.own;
  const bool explains = own * change > 0 && std::abs(own) >= std::abs(change) / 2;
  return explains ? DriftCause::kHeld : DriftCause::kTaken;
}

// By how much a series is off its reference in this exchange. The own time counts, which other work
// hardly disturbs, as far as the wall time bears it out: where a quota holds back what other work
// no longer takes, only the own time is longer.
double DriftDetector::off_of(Series& series) const {
  double off = series.now.wall - series.reference;
  if (series.quantity != Quantity::kCompute) {
    // A busy machine also sends later, but a faster machine does not explain a late message.
    return off - std::clamp(common_wall_, std::min(off, 0.0), std::max(off, 0.0));
  }
  off -= common_wall_;
  if (!series.clocked) return off;
  const double own = own_of(series) - series.reference - common_own_;
  series.wall_off = (series.wall_off + off) / 2;
  if (own * series.wall_off <= 0) return 0;
  const double borne_out = kBorneOut * series.wall_off;
  return std::abs(own) < std::abs(borne_out) ? own : borne_out;
}

// The own time, and what other work takes: as it does at normal, or more, as it does lately.
double DriftDetector::own_of(const Series& series) {
  return series.clocked ? series.now.own + std::max(series.taken, series.normal_taken)
                        : series.now.wall;
}

// Notes for how long the work has taken another processor time.
void DriftDetector::follow_work(Series& series, std::int64_t first_step) {
  if (!series.clocked || !learn_work(series)) return;
  const double shift = median(all_of(series.recent, &Point::work));  // as many as there may be
  if (std::abs(shift) <= dead_zone_) {
    series.work = {};
  } else if (shift * series.work.value > 0) {
    series.work.value = shift;
  } else {
    constexpr auto kAgo = static_cast<std::int64_t>(kRecent / 2) - 1;
    series.work = {shift, 0, first_step - kAgo * every_, exchanges_ - kAgo};
  }
}

// Establishes that the work takes another processor time: once that has lasted, or, where it is
// too large to pass or a way back to normal, once its size is known. Returns false if there is no
// such change.
bool DriftDetector::establish_work(Series& series) {
  const Sum work = std::exchange(series.work, {});
  if (work.exchange == 0) return false;
  const double off = series.reference - series.normal;
  const bool leaves = std::abs(off + work.value) > std::abs(off);
  const bool may_pass = leaves && std::abs(work.value) < std::log(kVaries);
  const double least = may_pass ? lasting_ : static_cast<double>(kRecent);
  if (static_cast<double>(exchanges_ - work.exchange) < least) {
    series.work = work;
    return false;
  }
  take_work(series, work.value);
  series.cause = DriftCause::kWork;
  move_to(series, series.reference + work.value, work);
  return true;
}

// Takes so much more processor time, as a logarithm, for what the work takes.
void DriftDetector::take_work(Series& series, double more) {
  for (Point& point : series.recent) {
    point.work -= more;
    for (double Point::*const of : {&Point::wall, &Point::own, &Point::value}) point.*of += more;
  }
  series.own += more;
  series.processor += more;
}

// What is normal of the work takes longer to learn than how long it is held back: a core may have
// been faster or slower just then. Returns whether it is known.
bool DriftDetector::learn_work(Series& series) {
  if (series.works.size() == kMostLearned) return true;
  series.works.push_back(series.now.work);
  if (series.works.size() < kMostLearned) return false;
  const double more = median(series.works);
  take_work(series, more);
  series.normal += more;
  series.reference += more;
  return true;
}

bool DriftDetector::has_processor(int rank) const {
  return std::none_of(series_.begin(), series_.end(), [&](const Series& series) {
    return series.quantity == Quantity::kCompute && series.clocked &&
           series.ranks.front() == rank &&
           series.now.wall - series.now.processor > series.away + std::log(kHas);
  });
}

bool DriftDetector::have_processors(const Series& series) const {
  return std::all_of(series.ends.begin(), series.ends.end(),
                     [&](int rank) { return has_processor(rank); });
}

// A rank whose processor is held back moves its messages later, too. What the next exchanges show
// is due to it, up to the size of its own change; those who wait for its sends wait for any time.
void DriftDetector::excuse_communication(const Series& computing) {
  for (Series& series : series_) {
    if (series.quantity == Quantity::kCompute) continue;
    const bool sends = series.quantity == Quantity::kSend;
    if (!sends && series.stage != computing.stage) continue;
    series.up = series.down = {};
    series.learned.clear();
    series.excused = kExcused;
    series.excuse =
        sends ? std::numeric_limits<double>::infinity() : std::abs(computing.change) + dead_zone_;
  }
}

void DriftDetector::take_excused(Series& series) const {
  series.learned.push_back(series.now);
  if (--series.excused > 0) return;
  const double shift = median(all_of(series.learned, &Point::wall)) - series.reference;
  series.learned.clear();
  series.learning = true;
  if (std::abs(shift) <= series.excuse) series.reference += shift;
}

}  // namespace agpcs
