// SPDX-License-Identifier: Apache-2.0
// What agpcs-plan says of plans: pure functions from plans to text.
#pragma once

#include <agpcs/plan.h>

#include <string>

namespace agpcs {

/// A summary for people: how the plan was made, its stages with their devices, buckets and program,
/// and what is expected of it.
std::string show_plan(const Plan& plan);

/// The plan as JSON (docs/plan_format.md, "JSON"): everything the text has.
std::string plan_json(const Plan& plan);

struct PlanDiff {
  std::string text;        ///< ready to print; says so when there is no difference
  bool decisions = false;  ///< something other than `made-by` and `expect` differs
  bool same = true;        ///< equal texts
};
/// What differs from `a` to `b`, by section of the plan: changed keys, lines gone and new, and how
/// far expectations moved.
PlanDiff diff_plans(const Plan& a, const Plan& b);

}  // namespace agpcs
