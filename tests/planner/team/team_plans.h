// SPDX-License-Identifier: Apache-2.0
// Strategies and plans whose stages have teams.
#pragma once

#include "codegen/lower.h"
#include "cost_model/step/simulator.h"
#include "planner/team/choose.h"
#include "tests/support/builders.h"
#include "tests/support/team_models.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// A body that divides nothing.
inline TeamBody whole_body(const Graph& graph) {
  TeamBody body;
  body.parts = {1, 1};
  std::map<TensorId, int> form_of;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    for (const auto* const list : {&graph.op(id).inputs, &graph.op(id).outputs}) {
      for (const TensorId tensor : *list) form_of[tensor] = 0;
    }
  }
  for (auto& [tensor, form] : form_of) {
    form = static_cast<int>(body.forms.size());
    body.forms.push_back({tensor, {}});
  }
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    TeamOp op{id};
    for (const TensorId tensor : graph.op(id).inputs) op.inputs.push_back(form_of[tensor]);
    for (const TensorId tensor : graph.op(id).outputs) op.outputs.push_back(form_of[tensor]);
    body.ops.push_back(std::move(op));
  }
  order_steps(graph, body);
  return body;
}

/// Returns the body that is best for such parts of the operators of a stage, on links of `link`
/// bytes per second; of one part, that of a member that computes alone.
inline TeamBody body_of_parts(const Strategy& strategy, const Graph& graph, std::size_t stage,
                              const std::vector<std::int64_t>& parts, double link) {
  TeamProblem problem{graph, {}, parts, 2, 2, Precision::kFp32, {}};
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    if (strategy.stage_of[static_cast<std::size_t>(op)] == static_cast<int>(stage)) {
      problem.ops.push_back(op);
    }
  }
  const std::size_t members = problem.parts.size();
  if (members == 1) return lone_body(graph, problem.ops);
  const TeamSpeeds speeds = {std::vector<double>(members, 1e12), std::vector<double>(members, 2e12),
                             link, 1e-9};
  problem.costs = roofline_costs(graph, speeds, problem.samples, problem.precision);
  // Bodies with all kinds of exchanges: what is copied within a device costs nothing.
  problem.costs.exchange = [given = problem.costs.exchange](TeamTraffic traffic) {
    traffic.copied.clear();
    return given(traffic);
  };
  Result<TeamChoice> choice = choose_team_body(problem);
  AGPCS_CHECK(choice.ok(), "{}", choice.status().message());
  return std::move(choice->body);
}

/// Gives each stage of `strategy` that has further members the body that is best for such parts, of
/// one such stage after the other, on links of `link` bytes per second.
inline void add_bodies(Strategy& strategy, const Graph& graph,
                       const std::vector<std::vector<std::int64_t>>& parts, double link = 3e11) {
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    if (strategy.stages[s].further.empty()) continue;
    TeamBody body = body_of_parts(strategy, graph, s, parts[strategy.bodies.size()], link);
    strategy.stages[s].body = static_cast<int>(strategy.bodies.size());
    strategy.bodies.push_back(std::move(body));
  }
}

/// Gives the replicas of the first stage bodies of their own, by their members' parts.
inline void add_unlike_bodies(Strategy& strategy, const Graph& graph,
                              const std::vector<std::vector<std::int64_t>>& parts,
                              double link = 3e11) {
  std::map<std::vector<std::int64_t>, int> known;
  StageSpec& spec = strategy.stages[0];
  spec.body = 0;
  for (const std::vector<std::int64_t>& own : parts) {
    const auto [body, added] = known.try_emplace(own, static_cast<int>(strategy.bodies.size()));
    if (added) strategy.bodies.push_back(body_of_parts(strategy, graph, 0, own, link));
    spec.bodies.push_back(body->second);
  }
}

/// A GPT of two layers, whose last product has a weight of its own.
inline Graph small_gpt() { return gpt_graph({2, 4, 32, 8, 8, 64, 40, false}); }

inline Cluster eight_devices() {
  return cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "kind slow memory=8e9 bandwidth=300e9 fp32=5e12\nhost a fast 4\nhost b slow 4\n");
}

/// The first stage is one team, of a fast and a slow device; the second has two teams of two.
inline constexpr const char* kTwoTeamStages =
    "micro-batches 2\nstage a/0+b/0=4 : embed..h0_x2\nstage a/1+a/2=3 b/1+b/2=1 : *\n";

/// A plan of a strategy that verifies, with its expectations.
inline Plan team_plan_of(const Graph& graph, const Cluster& cluster, const Strategy& strategy,
                         std::int64_t batch) {
  const Status valid = verify_strategy(strategy, graph, cluster, batch);
  AGPCS_CHECK(valid.ok(), "{}", valid.message());
  const Training training = training_of(graph, batch);
  Result<Plan> plan = lower(graph, cluster, training, strategy,
                            {.version = "0.1.0", .seed = 7, .seeder = "test", .refiner = "none"});
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  const Result<CostTable> costs = CostTable::make(graph, cluster, training);
  AGPCS_CHECK(costs.ok(), "{}", costs.status().message());
  const Result<Estimate> estimate = simulate(*plan, graph, cluster, *costs);
  AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
  plan->expect = expectations(*plan, *estimate);
  return *std::move(plan);
}

struct TeamPlanCase {
  Graph graph = small_gpt();
  Cluster cluster = eight_devices();
  Strategy strategy;
  Plan plan;
  explicit TeamPlanCase(const std::string& text = kTwoTeamStages,
                        const std::vector<std::vector<std::int64_t>>& parts = {{5, 3}, {1, 1}}) {
    strategy = strategy_of(text, graph, cluster);
    add_bodies(strategy, graph, parts);
    plan = team_plan_of(graph, cluster, strategy, 8);
  }
};

}  // namespace agpcs::testing
