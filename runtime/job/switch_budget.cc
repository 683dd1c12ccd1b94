// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/switch_budget.h"

#include <fmt/format.h>

namespace agpcs {

std::string why_not_worth_it(const Replan& replan, const SwitchOptions& options,
                             double move_seconds) {
  const double saved = replan.running_step_seconds - replan.step_seconds;
  if (saved <= 0) return "no plan is better";
  if (saved < options.least_gain * replan.running_step_seconds) {
    return fmt::format("the best plan saves {:.1f}% of a step, less than {:.1f}%",
                       100 * saved / replan.running_step_seconds, 100 * options.least_gain);
  }
  const double saved_in_all = saved * (options.horizon_seconds / replan.running_step_seconds);
  if (saved_in_all > move_seconds) return {};
  return fmt::format("moving takes about {:.1f} s, which saves {:.1f} s in {:.0f} s", move_seconds,
                     saved_in_all, options.horizon_seconds);
}

}  // namespace agpcs
