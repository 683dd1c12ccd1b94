// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/explain.h"

#include "cost_model/explain/step_waits.h"
#include "cost_model/step/model.h"
#include "planner/problem/strategy_of_plan.h"

#include <utility>

namespace agpcs {

Result<Explanation> explain(const Plan& plan, const Problem& problem, ExplainTeams teams) {
  const Graph& graph = problem.graph;
  const Cluster& cluster = problem.cluster;
  AGPCS_TRY(Estimate estimate, simulate(plan, graph, cluster, problem.costs, {.timeline = true}));
  AGPCS_TRY(StepModel model, make_step_model(plan, graph, cluster, problem.costs));
  Explanation e{plan, problem, std::move(estimate), {}, {}, {}, {}, {}, {}, {}, {}};
  const StepWaits waits(plan, model, e.estimate);
  CriticalPath path = critical_path(plan, model, cluster, waits);
  e.path = std::move(path.steps);
  e.parts = std::move(path.parts);
  for (int i = 0; i < waits.event_count(); ++i) {
    e.slack.push_back({waits.event(i), path.slack[static_cast<std::size_t>(i)]});
  }
  AGPCS_TRY(e.report, step_report(plan, graph, cluster, model, e.estimate, waits));
  e.model = std::move(model);
  AGPCS_TRY(const Strategy strategy, strategy_of_plan(plan, graph, cluster));
  AGPCS_TRY(e.plan_changes, what_if_plan(problem, strategy, e.estimate.step_seconds));
  AGPCS_TRY(e.hardware_changes, what_if_hardware(problem, plan, e.estimate));
  const bool ask = teams == ExplainTeams::kAskPlanner;
  if (!ask && plan.bodies.empty()) return e;
  AGPCS_TRY(e.teams, team_reasons(plan, problem, e.model, e.estimate, ask));
  return e;
}

}  // namespace agpcs
