// SPDX-License-Identifier: Apache-2.0
// What the views of a plan say of stages whose replicas are teams.
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/team_plans.h"
#include "tools/common/chrome_trace.h"
#include "tools/common/json.h"
#include "tools/common/words/plan_words.h"
#include "tools/plan/explain.h"
#include "tools/plan/explain_operator.h"
#include "tools/plan/report/html_report.h"
#include "tools/plan/views.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TeamPlanCase;

struct Explained {
  TeamPlanCase of;
  std::unique_ptr<const Problem> problem = testing::problem_of(of.graph, of.cluster, 8);
  Explanation explanation = *explain(of.plan, *problem);
};

TEST(PlanTeams, ShowSaysMembersPartsAndExchanges) {
  const TeamPlanCase of;
  const std::string text = show_plan(of.plan);
  EXPECT_THAT(text, HasSubstr("\n  1 team of 2 members by body t0, parts 5:3\n"
                              "  members divide 11 of 17 operators, and exchange\n"));
  EXPECT_THAT(text, HasSubstr("\n  2 teams of 2 members by body t1, parts 1:1\n"));
  EXPECT_THAT(text, HasSubstr("  rank  device  samples  part   busy  peak memory      sent\n"));
  EXPECT_THAT(text, HasSubstr("     0  a/0           4   5/8"));
  EXPECT_THAT(text, HasSubstr("     3  b/0           4   3/8"));
  EXPECT_THAT(text, HasSubstr("     5  b/2           1   1/2"));
  EXPECT_THAT(text, HasSubstr(", of which members hold "));
}

TEST(PlanTeams, ATitleSaysWhetherReplicasAreTeams) {
  const TeamPlanCase of;
  Plan one = of.plan;
  EXPECT_EQ(plan_kind(one), "pipeline of 2 stages");
  one.stages = {of.plan.stages[0]};
  EXPECT_EQ(plan_kind(one), "one team");
  one.stages = {of.plan.stages[1]};
  EXPECT_EQ(plan_kind(one), "2 teams");
}

TEST(PlanTeams, ExplainSaysWhatMembersComputeExchangeAndWaitFor) {
  const Explained e;
  const std::string text = explain_text(e.explanation, 100);
  EXPECT_THAT(text, HasSubstr("\n  s0: 1 team of 2 members by body t0, parts 5:3, which divide "
                              "11 of 17 operators\n"
                              "  s1: 2 teams of 2 members by body t1, parts 1:1, which divide "));
  EXPECT_THAT(text, HasSubstr("\n  exchanges of teams of s0 "));
  EXPECT_THAT(text,
              HasSubstr("\nteams: what members do in the passes of a micro-batch, forward and "
                        "backward\n"));
  EXPECT_THAT(text, HasSubstr(" b/0 and 1 more "));
  // The slow device of the first team has less to do, and still the fast one waits for it.
  const RankTimes& fast = e.explanation.model.ranks[0].times;
  const RankTimes& slow = e.explanation.model.ranks[3].times;
  EXPECT_GT(fast.in_forward.waiting, slow.in_forward.waiting);
  EXPECT_EQ(fast.in_forward.exchange, slow.in_forward.exchange);
}

TEST(PlanTeams, TheTimeOfADeviceAddsUpToTheStep) {
  const Explained e;
  const double step = e.explanation.estimate.step_seconds;
  double in_teams = 0;
  for (const DeviceReport& d : e.explanation.report.devices) {
    EXPECT_NEAR(d.compute + d.activations + d.gradients + d.all_reduce + d.sends + d.other +
                    d.finished + d.team_exchange + d.team_waiting,
                step, 1e-9 * step);
    in_teams += d.team_exchange + d.team_waiting;
  }
  EXPECT_GT(in_teams, 0);
  double parts = 0;
  for (const PathPart& part : e.explanation.parts) parts += part.seconds;
  EXPECT_NEAR(parts, step, 1e-9 * step);
}

TEST(PlanTeams, ExplainTriesWhatLeavesTeamsAsTheyAre) {
  const Explained e;
  EXPECT_GT(e.explanation.plan_changes.tried, 3);
  bool micro_batches = false;
  for (const WhatIf& change : e.explanation.plan_changes.changes) {
    EXPECT_THAT(change.family, Not(AllOf(HasSubstr("devices"), HasSubstr("shares"))));
    micro_batches = micro_batches || change.family == "micro-batches";
  }
  EXPECT_TRUE(micro_batches);
  const std::string json = explain_json(e.explanation);
  EXPECT_THAT(json, HasSubstr("\"members\": ["));
  EXPECT_THAT(json, HasSubstr("\"part\": \"5/8\""));
  EXPECT_THAT(json, HasSubstr("\"team_seconds\": {"));
}

TEST(PlanTeams, AMemberTakesWhatItsPartOfAnOperatorTakes) {
  const Explained e;
  const auto explained = explain_operator(e.of.plan, *e.problem, "h0_up0");
  ASSERT_TRUE(explained.ok()) << explained.status().message();
  EXPECT_THAT(operator_text(*explained, 10),
              HasSubstr("\n  some stages have teams, with bodies of their own operators: no move "
                        "starts here\n"));
  EXPECT_THAT(operator_json(*explained), HasSubstr("\"plan_has_teams\": true"));
  const std::vector<TimeOnDevices>& times = explained->place.times;
  ASSERT_EQ(times.size(), 2u + 4u);  // of one team, and of the two of the next stage
  EXPECT_LT(times[0].forward,
            e.problem->costs.seconds(0, e.problem->graph.find_op("h0_up0"), 4).forward);
  EXPECT_GT(times[0].part, 0);
}

TEST(PlanTeams, JsonHasBodiesAndFurtherMembers) {
  const TeamPlanCase of;
  const Result<std::string> json = plan_json(of.plan, of.graph, &of.cluster);
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_THAT(*json, HasSubstr("\"body\": \"t1\""));
  EXPECT_THAT(*json, HasSubstr("\"bodies\": ["));
  EXPECT_THAT(*json, HasSubstr("\"device\": \"b/2\""));
}

/// Returns the bytes that a member holds of trained parameters, by the forms of `body` as JSON.
std::int64_t held_bytes(const Json& body, const Graph& graph, std::size_t member) {
  std::int64_t bytes = 0;
  for (const Json& form : body["placed"]["forms"]) {
    if (form["kind"] != "parameter" || form.contains("from")) continue;
    const Tensor& tensor = graph.tensor(graph.find_tensor(form["tensor"].get<std::string>()));
    std::int64_t elements = elements_at(tensor.shape, 1);
    if (form["lies"] == "part") {
      const auto axis = form["axis"].get<std::size_t>();
      elements /= elements_at({tensor.shape[axis]}, 1);
      std::int64_t own = 0;
      for (const Json& range : form["ranges"][member]) {
        own += range[1].get<std::int64_t>() - range[0].get<std::int64_t>();
      }
      elements *= own;
    }
    bytes += 4 * elements;
  }
  return bytes;
}

TEST(PlanTeams, JsonSaysWhatEachMemberHolds) {
  const TeamPlanCase of;
  const Result<std::string> text = plan_json(of.plan, of.graph, &of.cluster);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const Json json = *parse_json(*text, {.name = "plan"});
  for (const PlanStage& stage : of.plan.stages) {
    const Json& body = json["bodies"][static_cast<std::size_t>(stage.body)];
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const std::vector<int> ranks = stage.members(i);
      for (std::size_t m = 0; m < ranks.size(); ++m) {
        const Json& memory = json["memory"][static_cast<std::size_t>(ranks[m])];
        EXPECT_EQ(held_bytes(body, of.graph, m), memory["gradients"].get<std::int64_t>());
      }
    }
  }
  // Not all alike, or nothing would be compared.
  EXPECT_GT(held_bytes(json["bodies"][0], of.graph, 0), held_bytes(json["bodies"][0], of.graph, 1));
}

TEST(PlanTeams, TraceAndReportKnowAllMembers) {
  const TeamPlanCase of;
  const Result<SimulatedStep> step = simulated_step(of.plan, of.graph, of.cluster);
  ASSERT_TRUE(step.ok()) << step.status().message();
  const std::string trace = chrome_trace(step->plan, of.cluster, step->estimate, step->report);
  EXPECT_THAT(trace, HasSubstr("rank 5 b/2"));
  const std::string page = html_report({of.cluster, *step, nullptr, {}});
  EXPECT_THAT(page, HasSubstr("2 teams of 2 members by body t1, parts 1:1; exchanges take "));
}

TEST(PlanTeams, DiffNamesTheBody) {
  const TeamPlanCase of;
  Plan other = of.plan;
  other.bodies[1].parts = {2, 1};
  EXPECT_THAT(diff_plans(of.plan, other).text, HasSubstr("body t1"));
}

}  // namespace
}  // namespace agpcs
