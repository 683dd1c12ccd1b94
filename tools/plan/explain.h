// SPDX-License-Identifier: Apache-2.0
// What a plan's simulated step comes from, and what would make it shorter: the data of
// `agpcs-plan explain`, as text for people and as JSON (docs/agpcs_plan.md).
#pragma once

#include "cost_model/critical_path.h"
#include "cost_model/step_report.h"
#include "planner/problem.h"
#include "planner/what_if.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {

/// `critical_path`'s slack with its instruction.
struct SlackOf {
  TimelineEvent event;
  double slack = 0;
};

struct Explanation {
  const Plan& plan;
  const Problem& problem;
  Estimate estimate;  ///< with timeline
  std::vector<PathStep> path;
  std::vector<PathPart> parts;
  std::vector<SlackOf> slack;  ///< of every instruction, by rank, in program order
  StepAnalysis report;
  WhatIfs plan_changes, hardware_changes;
};

/// A change that saves a smaller part of the step is not worth a line.
inline constexpr double kLeastGain = 0.005;

/// Simulates, finds the critical path, and tries out changes. `plan` and `problem` outlive the
/// result; the plan verifies against the problem.
Result<Explanation> explain(const Plan& plan, const Problem& problem);

/// At most 100 columns. Lists have at most `top` lines; changes are the best three of the plan and
/// of the hardware.
std::string explain_text(const Explanation& e, std::size_t top);
std::string explain_json(const Explanation& e);

}  // namespace agpcs
