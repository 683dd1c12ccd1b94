// SPDX-License-Identifier: Apache-2.0
// PlanProgress: tells how planning goes, and the best plan so far.
#pragma once

#include "planner/plan_problem.h"
#include "tools/common/common.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace agpcs {

/// On a terminal everything is on the one line that `Progress` overwrites. Elsewhere there is a
/// line for what is done next, for the first plan that fits, for the bound, and for each plan whose
/// step is shorter by 1% or more than the last one that was told; and while a search goes on one
/// after half a second, the next after twice that, and so on up to half a minute. Plans come with
/// the seconds since this was made.
class PlanProgress {
 public:
  /// `teams`, `interleaved`: plans may have teams, or interleaved stages, of which the bound may
  /// say nothing.
  PlanProgress(Progress& progress, bool teams, bool interleaved)
      : progress_(progress), teams_(teams), interleaved_(interleaved), began_(Clock::now()) {}

  /// What is done next: ("metis", 2, 6) is the second of six.
  void begins(std::string_view what, int number, int of);
  /// A plan that fits, whose step takes `seconds`; `by`: what found it.
  void found(double seconds, std::string_view by);
  void bounded(const LowerBound& bound);
  /// A search made so many evaluations; the best step so far takes `seconds`.
  void searched(std::int64_t made, std::int64_t of, double seconds, std::string_view by);
  /// The plan is made: leaves a line about it.
  void made(const Planned& planned);

 private:
  using Clock = std::chrono::steady_clock;
  double elapsed() const;
  /// Returns ", within 4.1% of any plan" for a step; nothing before there is a bound.
  std::string gap(double seconds) const;
  /// Tells of the best plan so far if that is worth a line.
  void tell(std::string_view by);
  void overwrite(std::string_view what);

  Progress& progress_;
  bool teams_, interleaved_;
  std::string without_;  // what the bound says nothing of
  Clock::time_point began_;
  std::optional<double> bound_, best_, told_;  // seconds
  std::string doing_ = "plan";                 // what the overwritten line says
  std::optional<Clock::time_point> search_began_, said_;
  std::chrono::milliseconds pause_{500};
};

}  // namespace agpcs
