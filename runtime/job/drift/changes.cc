// SPDX-License-Identifier: Apache-2.0
// What a DriftDetector says: changes, suspicions, and how fast devices are.
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"

#include <agpcs/drift.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

/// Parts of the threshold that make a suspicion: without noise, one exchange that is far off is
/// enough, of a device also one at 40% of its speed.
constexpr double kOfLinks = 0.4, kOfDevices = 0.25;
/// Least value of a time, as a part of the expected time.
constexpr double kLeastPart = 1e-3;
/// Of computing that is expected to take less than a fifth of a step (of which the floor is 2%),
/// only changes count.
constexpr double kMostFloor = 0.1;

/// Says why a device computes at another speed; empty where that is not known.
std::string_view why_of(const DriftChange& change) {
  const bool slower = change.factor > 1;
  switch (change.cause) {
    case DriftCause::kUnknown:
      return "";
    case DriftCause::kWork:
      return slower ? ": it needs more processor time" : ": it needs less processor time";
    case DriftCause::kHeld:
      return slower ? ": a quota or its host holds its processor back"
                    : ": no quota and no host holds its processor back any more";
    case DriftCause::kTaken:
      return slower ? ": other work has its processor, or it waits"
                    : ": no other work has its processor any more";
  }
  return "";
}

}  // namespace

std::string describe(const Plan& plan, const DriftChange& change) {
  std::string what, more;
  if (change.quantity == Quantity::kCompute) {
    what = fmt::format("{} computes", device_of_rank(plan, change.rank));
    more = change.factor > 1 ? "slower" : "faster";
  } else {
    what = change.quantity == Quantity::kAllReduce
               ? fmt::format("all-reduces of {} take",
                             names_of_stages(plan, plan.stage_of_rank(change.rank)))
               : fmt::format("sends of {} take", device_of_rank(plan, change.rank));
    more = change.factor > 1 ? "longer" : "shorter";
  }
  const double times = change.factor > 1 ? change.factor : 1 / std::max(change.factor, 1e-6);
  if (times < 1.1) return fmt::format("{} as expected again since step {}", what, change.since);
  return fmt::format("{} {:.3g} times {} than expected since step {}{}", what, times, more,
                     change.since, why_of(change));
}

void DriftDetector::list_established() {
  established_.clear();
  for (const Series& series : series_) {
    if (series.established) established_.push_back(change_of(series));
  }
}

DriftChange DriftDetector::change_of(const Series& series) const {
  const auto seconds = [&](double log) {
    return std::exp(log) * (series.expected_seconds + series.floor_seconds) - series.floor_seconds;
  };
  const double least = kLeastPart * series.expected_seconds;
  const double factor =
      std::max(seconds(series.reference), least) / std::max(seconds(series.normal), least);
  return {series.quantity, series.ranks.front(), factor, series.since, series.cause};
}

std::vector<double> DriftDetector::computing() const {
  std::vector<double> ratios(static_cast<std::size_t>(ranks_), 1);
  for (const Series& series : series_) {
    if (series.quantity != Quantity::kCompute) continue;
    const double floor = series.floor_seconds / series.expected_seconds;
    // What a busy machine makes of wall times is no property of the device; its own time is. Nor is
    // the time of little work, which may end before a quota stops it.
    const bool tells = (!series.clocked || series.steady) && floor <= kMostFloor;
    const double change = series.established ? series.reference - series.normal : 0;
    const double level = tells ? series.reference : change;
    const double ratio = std::exp(level) * (1 + floor) - floor;
    ratios[static_cast<std::size_t>(series.ranks.front())] = std::max(ratio, kLeastPart);
  }
  return ratios;
}

bool DriftDetector::suspects(bool computing) const {
  const double part = computing ? kOfDevices : kOfLinks;
  return std::any_of(series_.begin(), series_.end(), [&](const Series& series) {
    return (series.quantity == Quantity::kCompute) == computing &&
           std::max(series.up.value, series.down.value) > part * threshold(series.quantity);
  });
}

}  // namespace agpcs
