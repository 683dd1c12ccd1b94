// SPDX-License-Identifier: Apache-2.0
// Explains where a plan's simulated step comes from, and what would make it shorter. This is the
// data of `agpcs-plan explain`, as text for people and as JSON (docs/reference/agpcs_plan.md).
#pragma once

#include "cost_model/explain/critical_path.h"
#include "cost_model/explain/step_report.h"
#include "cost_model/step/model.h"
#include "planner/problem/problem.h"
#include "planner/what_if.h"
#include "tools/plan/team/team_reasons.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// The slack of an instruction, from `critical_path`.
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
  std::vector<SlackOf> slack;  ///< one per instruction, by rank, in program order
  StepAnalysis report;
  StepModel model;
  WhatIfs plan_changes, hardware_changes;
  std::optional<TeamReasons> teams;
};

/// Whether to say why a plan has teams, or none.
enum class ExplainTeams : std::uint8_t {
  kIfThere,     ///< of a plan with teams, without plans that the planner would have to make
  kAskPlanner,  ///< of every plan, with such plans
};

/// A change that saves a smaller part of the step gets no line.
inline constexpr double kLeastGain = 0.005;

/// Simulates, finds the critical path, tries out changes, and compares teams (`team_reasons`).
/// `plan` and `problem` must outlive the
/// result. Needs: the plan verifies against the problem.
Result<Explanation> explain(const Plan& plan, const Problem& problem,
                            ExplainTeams teams = ExplainTeams::kIfThere);

/// Returns the explanation with at most 100 columns. Lists have at most `top` lines. Changes are
/// the best three of the plan and the best three of the hardware.
std::string explain_text(const Explanation& e, std::size_t top);
std::string explain_json(const Explanation& e);

}  // namespace agpcs
