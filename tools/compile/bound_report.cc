// SPDX-License-Identifier: Apache-2.0
#include "tools/compile/bound_report.h"

#include "ir/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

namespace agpcs {
namespace {

/// Returns how much longer the step is than a limit, as a fraction of it.
double gap_of(const Compiled& compiled, const Limit& limit) {
  return compiled.planned.best.estimate.step_seconds / limit.seconds - 1;
}

/// Returns whether the plan could have teams, of which the bound says nothing.
bool may_have_teams(const Compiled& compiled) {
  return compiled.problem->options.choose_teams || !compiled.planned.best.plan.bodies.empty();
}

bool may_be_interleaved(const Compiled& compiled) {
  return compiled.interleave || compiled.planned.best.plan.interleaves();
}

/// Returns " without teams" if the bound of any plan says nothing of teams.
std::string any_plan_is_without(const Compiled& compiled) {
  return bound_is_without(*compiled.planned.bound, may_have_teams(compiled),
                          may_be_interleaved(compiled));
}

}  // namespace

std::string bound_lines(const Compiled& compiled) {
  if (!compiled.planned.bound) return {};
  const auto& [one_stage, any, interleaved] = *compiled.planned.bound;
  std::string least =
      fmt::format("no plan{} takes less than {} ({})", any_plan_is_without(compiled),
                  figure(any.seconds, "s"), any.reason);
  if (std::isfinite(one_stage.seconds)) {
    least += fmt::format(", none without a pipeline{} less than {} ({})",
                         may_have_teams(compiled) ? " or teams" : "",
                         figure(one_stage.seconds, "s"), one_stage.reason);
  }
  return fmt::format("{0:16}{1}\n{0:16}{2}\n", "", describe_bound(compiled), least);
}

std::string gap_text(double gap) {
  const double percent = std::max(0.0, 100 * gap);
  return percent < 100 ? fmt::format("{:.{}f}%", percent, percent < 10 ? 1 : 0)
                       : fmt::format("a factor of {:.1f}", 1 + percent / 100);
}

bool interleaved_may_take_less(const LowerBound& bound) {
  return bound.any_interleaved.seconds < bound.any.seconds;
}

std::string bound_is_without(const LowerBound& bound, bool teams, bool interleaved) {
  const bool stages = interleaved && interleaved_may_take_less(bound);
  if (!teams && !stages) return {};
  return fmt::format(" without {}{}{}", teams ? "teams" : "", teams && stages ? " or " : "",
                     stages ? "interleaved stages" : "");
}

std::string describe_bound(const Compiled& compiled) {
  if (!compiled.planned.bound) return {};
  const auto& [one_stage, any, interleaved] = *compiled.planned.bound;
  const double gap_of_any = gap_of(compiled, any);
  const std::string any_plan = "any plan" + any_plan_is_without(compiled);
  const std::string teams = may_have_teams(compiled) ? " or teams" : "";
  const std::string of_any = gap_of_any < 0
                                 ? fmt::format("{} less than {}", gap_text(-gap_of_any), any_plan)
                                 : fmt::format("within {} of {}", gap_text(gap_of_any), any_plan);
  if (std::isinf(one_stage.seconds)) {
    return fmt::format("{}; none without a pipeline{} fits in memory", of_any, teams);
  }
  const double gap = gap_of(compiled, one_stage);
  if (gap < 0) {
    return fmt::format("{} less than any plan without a pipeline{}, {}", gap_text(-gap), teams,
                       of_any);
  }
  return fmt::format("within {} of the best without a pipeline{}, {} of {}", gap_text(gap), teams,
                     gap_text(gap_of_any), any_plan);
}

Json bound_json(const Compiled& compiled) {
  const std::optional<LowerBound>& bound = compiled.planned.bound;
  Json json;
  const auto add = [&](const std::string& name, const std::string& gap, const Limit* limit) {
    const bool has = limit != nullptr && std::isfinite(limit->seconds);
    json[name + "_seconds"] = has ? Json(limit->seconds) : Json();
    json[name + "_reason"] = has ? Json(limit->reason) : Json();
    json[gap] = has ? Json(gap_of(compiled, *limit)) : Json();
  };
  add("lower_bound", "gap", bound ? &bound->any : nullptr);
  add("one_stage_bound", "one_stage_gap", bound ? &bound->one_stage : nullptr);
  json["bound_of_plans_without_teams"] = bound && may_have_teams(compiled);
  json["bound_of_plans_without_interleaved"] =
      bound && may_be_interleaved(compiled) && interleaved_may_take_less(*bound);
  return json;
}

}  // namespace agpcs
