// SPDX-License-Identifier: Apache-2.0
#include "tools/compile/plan_progress.h"

#include "ir/base/units.h"
#include "tools/compile/bound_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace agpcs {
namespace {

constexpr double kOfNote = 0.01;  // by what part a step is shorter if it has a line of its own
constexpr std::chrono::milliseconds kRewritten{500}, kLongestPause{30'000};

std::string after(double seconds) {
  return fmt::format("after {:.{}f} s", seconds, seconds < 10 ? 2 : 0);
}

}  // namespace

double PlanProgress::elapsed() const {
  return std::chrono::duration<double>(Clock::now() - began_).count();
}

std::string PlanProgress::gap(double seconds) const {
  if (!bound_) return {};
  const double gap = seconds / *bound_ - 1;
  const std::string any_plan = "any plan" + without_;
  return gap < 0 ? fmt::format(", {} less than {}", gap_text(-gap), any_plan)
                 : fmt::format(", within {} of {}", gap_text(gap), any_plan);
}

void PlanProgress::overwrite(std::string_view what) {
  doing_ = what;
  progress_.step(best_
                     ? fmt::format("{} (best step {}{})", doing_, figure(*best_, "s"), gap(*best_))
                     : doing_);
}

void PlanProgress::begins(std::string_view what, int number, int of) {
  const std::string text = fmt::format("plan {}/{}: {}", number, of, what);
  progress_.on_terminal() ? overwrite(text) : progress_.step(text);
}

void PlanProgress::found(double seconds, std::string_view by) {
  if (best_ && seconds >= *best_) return;
  best_ = seconds;
  tell(by);
}

void PlanProgress::tell(std::string_view by) {
  if (progress_.on_terminal()) {
    overwrite(doing_);
    return;
  }
  if (told_ && *best_ > (1 - kOfNote) * *told_) return;
  progress_.step(fmt::format("{} plan: step {}{}, by {}, {}", told_ ? "better" : "first",
                             figure(*best_, "s"), gap(*best_), by, after(elapsed())));
  told_ = best_;
}

void PlanProgress::bounded(const LowerBound& bound) {
  if (!std::isfinite(bound.any.seconds)) return;
  bound_ = bound.any.seconds;
  without_ = bound_is_without(bound, teams_, interleaved_);
  if (progress_.on_terminal()) {
    overwrite(doing_);
  } else {
    progress_.step(fmt::format("bound: no plan{} takes less than {}{}", without_,
                               figure(*bound_, "s"),
                               best_ ? "; the first one is" + gap(*best_).substr(1) : ""));
  }
}

void PlanProgress::searched(std::int64_t made, std::int64_t of, double seconds,
                            std::string_view by) {
  const auto now = Clock::now();
  if (!search_began_) search_began_ = said_ = now;
  if (!best_ || seconds < *best_) {
    best_ = seconds;
    if (!progress_.on_terminal()) tell(by);
  }
  if (now - *said_ < (progress_.on_terminal() ? kRewritten : pause_)) return;
  said_ = now;
  pause_ = std::min(2 * pause_, kLongestPause);
  const double took = std::chrono::duration<double>(now - *search_began_).count();
  const double speed = static_cast<double>(made) / took;
  progress_.step(fmt::format("search: {} of {}, {:.0f}/s, best step {}{}, {:.0f} s to go", made, of,
                             speed, figure(*best_, "s"), gap(*best_),
                             static_cast<double>(of - made) / speed));
}

void PlanProgress::made(const Planned& planned) {
  const double seconds = planned.best.estimate.step_seconds;
  progress_.leave(
      fmt::format("plan: step {}{}, {}", figure(seconds, "s"), gap(seconds), after(elapsed())));
}

}  // namespace agpcs
