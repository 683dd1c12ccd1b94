// SPDX-License-Identifier: Apache-2.0
// Why a plan has teams, or none: what its teams exchange, and what the same stages would take with
// teams of other sizes, or without.
#pragma once

#include "cost_model/step/model.h"
#include "cost_model/step/simulator.h"
#include "planner/problem/problem.h"
#include "tools/common/json.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// What the teams of a stage exchange within passes in a step.
struct StageExchanges {
  int stage = 0;
  double seconds = 0;           ///< of the team that exchanges longest
  std::int64_t bytes_sent = 0;  ///< by a member, the mean
  int link = kNone;  ///< the one whose bytes take longest at its bandwidth; kNone: nothing is sent
  /// Other stages whose teams exchange over one of the same links.
  std::vector<int> meets;
};

/// The plan's stages with their devices in other teams, or in none.
struct TeamAlternative {
  std::size_t members = 1;  ///< of each team; 1: no teams
  int devices = 0;          ///< those that have samples
  std::int64_t micro_batches = 0;
  std::optional<double> step_seconds;
  double exchange_seconds = 0;  ///< of the step, of the rank whose team exchanges longest
  std::string why_not;          ///< where there is no step
};

/// A plan that the planner makes for the problem.
struct OtherPlan {
  std::string kind;  ///< `plan_kind`
  int devices = 0;
  std::int64_t micro_batches = 0;
  std::optional<double> step_seconds;
  double exchange_seconds = 0;
  std::string why_not;
};

struct TeamReasons {
  std::vector<StageExchanges> exchanges;      ///< by stage with teams
  std::vector<TeamAlternative> alternatives;  ///< by members; not what the plan has
  /// Where the planner was asked: for a plan with teams the best plan without, for a plan without
  /// the best one with teams from which a search would begin.
  std::optional<OtherPlan> other;
};

/// Looks at what the teams of `plan` exchange, and tries its stages with other teams: of 1, 2, 4
/// and 8 devices, all those stages that have teams (of a plan without teams, every stage), each
/// with the best of a few numbers of micro-batches. `ask_planner`: also plans without teams, as
/// `agpcs-compile --without teams` does by default, or asks seeder `teams`. Needs: the plan is for
/// the problem, `model` and `estimate` are the plan's. Cost: some dozens of choices of bodies and
/// simulations; `ask_planner`: that of planning.
Result<TeamReasons> team_reasons(const Plan& plan, const Problem& problem, const StepModel& model,
                                 const Estimate& estimate, bool ask_planner);

/// Returns lines for `explain`; `step_seconds` are the plan's.
std::string team_reasons_text(const Plan& plan, const Cluster& cluster, const TeamReasons& reasons,
                              double step_seconds);
/// Returns the same for the report: lines, and the rows of a table.
Json team_reasons_rows(const Plan& plan, const Cluster& cluster, const TeamReasons& reasons,
                       double step_seconds);
/// Returns the same for JSON.
Json team_reasons_json(const Plan& plan, const Cluster& cluster, const TeamReasons& reasons);

}  // namespace agpcs
