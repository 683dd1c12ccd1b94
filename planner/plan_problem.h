// SPDX-License-Identifier: Apache-2.0
// plan_problem: runs seeders, keeps the fastest plan that fits, and compares it with baselines.
#pragma once

#include "planner/layout.h"
#include "planner/lower_bound.h"
#include "planner/problem.h"

#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// What a seeder or baseline came to.
struct Attempt {
  std::string name;
  int candidates = 0;
  int feasible = 0;
  std::optional<double> step_seconds;  ///< of its best that fits
  std::string why_not;                 ///< where none fits: which device lacks how many bytes
};

struct PlanOptions {
  std::uint64_t seed = 0;
  std::vector<std::string> seeders;  ///< empty: all, in the table's order
  std::optional<Layout> layout;      ///< given: exactly this one, no seeder is asked
  /// Told what is done next ("metis", 2, 6: the second of six), for progress.
  std::function<void(std::string_view what, int number, int of)> progress;
};

struct Planned {
  Evaluated best;    ///< its plan has its `expect` section, and verifies against graph and cluster
  LowerBound bound;  ///< no strategy takes less
  std::vector<Attempt> seeders;    ///< in the order run
  std::vector<Attempt> baselines;  ///< "data_parallel" (equal shares on all devices), "degree"
};

/// The fastest by simulated step time of all candidates that fit; a tie goes to the first.
/// Baselines are measured, never chosen: ask for seeder `degree` to have its plan.
/// Errors: kInfeasible where nothing fits, with the device that lacks least in the candidate that
/// lacks least; kUsage for an unknown seeder.
Result<Planned> plan_problem(const Problem& problem, const PlanOptions& options);

}  // namespace agpcs
