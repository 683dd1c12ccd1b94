// SPDX-License-Identifier: Apache-2.0
// The views of agpcs-plan: pure functions from plans to text.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>

namespace agpcs {

/// Returns a summary for people: how the plan was made, its stages with their devices, buckets and
/// program, and its expected figures.
std::string show_plan(const Plan& plan);

/// Returns "5 micro-batches in flight (1f1b: 3)" for a stage whose program departs from the plan's
/// schedule; nothing for others.
std::string in_flight_text(const Plan& plan, int stage);

/// Returns "recomputed in 5 segments, 40 of 120 operators kept", "recomputed" for a stage that
/// recomputes as a whole, and nothing for one that does not recompute.
std::string recomputation_text(const PlanStage& stage);

/// Returns the plan as JSON (docs/reference/plan_format.md, "JSON"), with everything that the text
/// has.
std::string plan_json(const Plan& plan);
/// Does the same, with the operators of `graph` and their stages; with a `cluster`, also with the
/// memory of each rank. Errors: those of `resolve_stages`. Needs: the plan is for both.
Result<std::string> plan_json(const Plan& plan, const Graph& graph,
                              const Cluster* cluster = nullptr);

struct PlanDiff {
  std::string text;        ///< ready to print; states it if there is no difference
  bool decisions = false;  ///< something other than `made-by` and `expect` differs
  bool same = true;        ///< the texts are equal
};
/// Returns the differences from `a` to `b` by section of the plan: changed keys, removed and added
/// lines, and how far expectations moved.
PlanDiff diff_plans(const Plan& a, const Plan& b);

}  // namespace agpcs
