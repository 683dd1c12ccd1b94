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

/// One stage on four devices of one host, with a sample each: two teams of two, or none.
struct OneStage {
  Graph graph = testing::small_gpt();
  Cluster cluster = testing::cluster_of(
      "kind gpu memory=16e9 bandwidth=900e9 fp32=1e12\nhost a gpu 4 bandwidth=300e9 latency=0\n");
  std::unique_ptr<const Problem> problem = testing::problem_of(graph, cluster, 8);

  Plan plan(const std::string& text, bool teams) const {
    Strategy strategy = testing::strategy_of(text, graph, cluster);
    if (teams) testing::add_bodies(strategy, graph, {{1, 1}});
    return testing::team_plan_of(graph, cluster, strategy, 8);
  }
  Explanation explained(const Plan& of, ExplainTeams teams) const {
    Result<Explanation> e = explain(of, *problem, teams);
    AGPCS_CHECK(e.ok(), "{}", e.status().message());
    return *std::move(e);
  }
};

constexpr const char* kInTeams = "micro-batches 2\nstage a/0+a/1=2 a/2+a/3=2 : *\n";
constexpr const char* kAlone = "micro-batches 2\nstage a/0=1 a/1=1 a/2=1 a/3=1 : *\n";
constexpr const char* kAloneAtOnce = "micro-batches 1\nstage a/0=2 a/1=2 a/2=2 a/3=2 : *\n";

TEST(PlanTeams, ExplainSaysWhatTeamsExchangeAndWhatTheSameStagesTakeWithoutThem) {
  const OneStage of;
  const Plan plan = of.plan(kInTeams, true);
  const Explanation e = of.explained(plan, ExplainTeams::kIfThere);
  ASSERT_TRUE(e.teams);
  ASSERT_EQ(e.teams->exchanges.size(), 1u);
  const StageExchanges& exchanges = e.teams->exchanges[0];
  EXPECT_EQ(exchanges.seconds, e.estimate.devices[0].team_exchange);
  const RankTimes& times = e.model.ranks[0].times;
  EXPECT_NEAR(
      exchanges.seconds,
      2 * (times.in_forward.exchange + times.in_backward.exchange) + times.in_step_end.exchange,
      1e-9 * exchanges.seconds);
  double on_path = 0;  // which ends with an update
  for (const PathPart& part : e.parts) {
    if (part.sort == PathSort::kTeam) on_path += part.seconds;
  }
  EXPECT_GT(on_path, 0);
  EXPECT_LE(on_path, exchanges.seconds * (1 + 1e-9));
  EXPECT_EQ(of.cluster.links[static_cast<std::size_t>(exchanges.link)].bandwidth, 300e9);
  EXPECT_TRUE(exchanges.meets.empty());
  std::int64_t sent = 0;  // by all, but for sums of gradients, which go between teams
  for (const TeamCollectives& all : e.model.team_exchanges) {
    for (const Exchange& one : all.exchanges) {
      for (const Phase& phase : one) {
        for (const Flow& flow : phase.flows) {
          sent +=
              (all.end - all.first) * flow.bytes * static_cast<std::int64_t>(flow.senders.size());
        }
      }
    }
  }
  EXPECT_EQ(exchanges.bytes_sent, sent / 4);
  EXPECT_FALSE(e.teams->other);
  ASSERT_EQ(e.teams->alternatives.size(), 3u);  // 1, 4 and 8
  const TeamAlternative& alone = e.teams->alternatives[0];
  EXPECT_EQ(alone.members, 1u);
  EXPECT_EQ(alone.devices, 4);
  EXPECT_EQ(alone.exchange_seconds, 0);
  // What it takes follows from a plan of its own, too.
  const Plan plain = of.plan(kAloneAtOnce, false);
  ASSERT_TRUE(alone.step_seconds);
  ASSERT_EQ(alone.micro_batches, 1);
  const double by_hand = of.explained(plain, ExplainTeams::kIfThere).estimate.step_seconds;
  EXPECT_LE(*alone.step_seconds, by_hand);  // which has other buckets
  EXPECT_NEAR(*alone.step_seconds, by_hand, 0.01 * by_hand);
  EXPECT_EQ(e.teams->alternatives[2].why_not, "no stage has 8 devices that could be a team");
  const std::string text = explain_text(e, 10);
  EXPECT_THAT(text, HasSubstr("\nwhy teams: what they exchange, and the same stages without\n"
                              "  s0: forward "));
  EXPECT_THAT(text, HasSubstr("\n    most of it over a/0 out, "));
  EXPECT_THAT(text, HasSubstr("\n    instead     devices  micro-batches"));
  EXPECT_THAT(text, HasSubstr("\n    no teams          4 "));
  EXPECT_THAT(text, HasSubstr("\n    teams of 8: no stage has 8 devices that could be a team\n"));
  EXPECT_THAT(explain_json(e), HasSubstr("\"teams\": {"));
}

TEST(PlanTeams, ExplainSaysOfAPlanWithoutTeamsWhatTheyWouldTakeIfAsked) {
  const OneStage of;
  const Plan plan = of.plan(kAlone, false);
  EXPECT_FALSE(of.explained(plan, ExplainTeams::kIfThere).teams);
  EXPECT_THAT(explain_text(of.explained(plan, ExplainTeams::kIfThere), 10), Not(HasSubstr("why ")));
  const Explanation e = of.explained(plan, ExplainTeams::kAskPlanner);
  ASSERT_TRUE(e.teams);
  EXPECT_TRUE(e.teams->exchanges.empty());
  ASSERT_EQ(e.teams->alternatives.size(), 3u);  // 2, 4 and 8
  const TeamAlternative& pairs = e.teams->alternatives[0];
  ASSERT_TRUE(pairs.step_seconds) << pairs.why_not;
  EXPECT_GT(pairs.exchange_seconds, 0);
  EXPECT_LT(pairs.exchange_seconds, *pairs.step_seconds);
  ASSERT_TRUE(e.teams->other);
  ASSERT_TRUE(e.teams->other->step_seconds) << e.teams->other->why_not;
  EXPECT_THAT(explain_text(e, 10), AllOf(HasSubstr("\nwhy no teams: the same stages with them\n"),
                                         HasSubstr("\n    best seed with teams: ")));
}

TEST(PlanTeams, ExplainAsksThePlannerForAPlanWithoutTeams) {
  const OneStage of;
  const Plan plan = of.plan(kInTeams, true);
  const Explanation e = of.explained(plan, ExplainTeams::kAskPlanner);
  ASSERT_TRUE(e.teams->other);
  const OtherPlan& other = *e.teams->other;
  EXPECT_EQ(other.exchange_seconds, 0);
  // The planner's best is no slower than the same stage without teams.
  EXPECT_LE(*other.step_seconds, *e.teams->alternatives[0].step_seconds);
  EXPECT_THAT(explain_text(e, 10), HasSubstr("\n    best plan without: "));
}

TEST(PlanTeams, ExplainSaysWhereTeamsWouldDivideNothing) {
  OneStage of;
  for (Link& link : of.cluster.links) link.bandwidth = 1e3;
  of.problem = testing::problem_of(of.graph, of.cluster, 8);
  const Plan plan = of.plan(kAlone, false);
  const Explanation e = of.explained(plan, ExplainTeams::kAskPlanner);
  EXPECT_THAT(explain_text(e, 10),
              HasSubstr("\n    teams of 2: whatever is divided, exchanges take longer than it "
                        "saves\n"));
}

TEST(PlanTeams, ReportSaysWhyThereAreTeams) {
  const OneStage of;
  const Plan plan = of.plan(kInTeams, true);
  const Explanation e = of.explained(plan, ExplainTeams::kIfThere);
  const Result<SimulatedStep> step = simulated_step(plan, of.graph, of.cluster);
  ASSERT_TRUE(step.ok()) << step.status().message();
  const std::string page = html_report({of.cluster, *step, nullptr, {}, &*e.teams});
  EXPECT_THAT(
      page, AllOf(HasSubstr("<h2>Why teams</h2>\n<p>s0: forward "),
                  HasSubstr("; most of it over a/0 out, "), HasSubstr(">no teams</td><td>4</td>")));
  EXPECT_THAT(html_report({of.cluster, *step, nullptr, {}}), Not(HasSubstr("Why teams")));
}

TEST(PlanTeams, DiffNamesTheBody) {
  const TeamPlanCase of;
  Plan other = of.plan;
  other.bodies[1].parts = {2, 1};
  EXPECT_THAT(diff_plans(of.plan, other).text, HasSubstr("body t1"));
}

}  // namespace
}  // namespace agpcs
