// SPDX-License-Identifier: Apache-2.0
// plan_problem: the best plan found for a problem, and how good it is.
#pragma once

#include "planner/bound/lower_bound.h"
#include "planner/plan_stages.h"
#include "planner/problem/problem.h"

#include <agpcs/status.h>

#include <optional>
#include <vector>

namespace agpcs {

/// A plan, and beside it what tells how good it is.
struct Planned {
  Evaluated best;  ///< its plan has its `expect` section, and verifies against graph and cluster
  std::optional<LowerBound> bound;  ///< no strategy takes less time; as `PlanOptions::bound` says
  std::vector<Attempt> seeders;     ///< in the order in which they ran
  std::vector<Attempt> baselines;   ///< `measure_baselines`
  Refinement refinement;
};

/// Runs the pipeline (planner/pipeline.h) silently, from stage "seed" on. The plan is the fastest
/// candidate by simulated step time among those that fit, then refined; a tie goes to the first.
/// Errors: kInfeasible if nothing fits, with the device that lacks least in the candidate that
/// lacks least; kUsage for an unknown seeder.
Result<Planned> plan_problem(const Problem& problem, const PlanOptions& options);

}  // namespace agpcs
