// SPDX-License-Identifier: Apache-2.0
// What knows no teams refuses them by name.
#include "ir/strategy/teams.h"
#include "planner/refine/moves/moves.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/team_plans.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

namespace agpcs {
namespace {

using testing::TeamPlanCase;

std::unique_ptr<const Problem> problem_of(const TeamPlanCase& of) {
  return testing::problem_of(of.graph, of.cluster, 8);
}

TEST(TeamRefusal, OfAStrategyNamesStageAndReader) {
  const TeamPlanCase of;
  const auto problem = problem_of(of);
  EXPECT_EQ(refuse_teams(of.strategy, "the search").message(),
            "stage 0 is computed by teams, which the search does not know yet\n"
            "  hint: replicas that are single devices");
  EXPECT_TRUE(refuse_teams(testing::on_all(*problem), "the search").ok());
}

TEST(TeamRefusal, OfMovesIsOurs) {
  const TeamPlanCase of;
  const auto problem = problem_of(of);
  StrategyMoves moves(*problem);
  EXPECT_DEATH(moves.apply(of.strategy, of.strategy, SetMicroBatches{4, true}),
               "the search does not know");
}

std::string fault_of(const TeamPlanCase& of, const Strategy& strategy) {
  const Status status = verify_strategy(strategy, of.graph, of.cluster, 8);
  return status.ok() ? "" : status.message();
}

/// Returns the fault of a sound strategy with teams after a change.
std::string fault_with(const std::function<void(Strategy&)>& change) {
  const TeamPlanCase of;
  Strategy strategy = of.strategy;
  change(strategy);
  return fault_of(of, strategy);
}

TEST(VerifyStrategy, NamesWhatTeamsDoNotGoWithYet) {
  EXPECT_EQ(fault_with([](Strategy&) {}), "");
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[1].recompute = kWholeStage; }),
            "strategy: stage 1 has teams, and recomputes: the two do not go together yet");
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[1].state = StateLevel::kOptimizer; }),
            "strategy: stage 1 has teams, and divides its state: the two do not go together yet");
  EXPECT_EQ(fault_with([](Strategy& s) { s.schedule = Schedule::kZeroBubble; }),
            "strategy: stage 0 has teams, and its backward passes are parted: the two do not go "
            "together yet");
  const TeamPlanCase tied = [] {
    TeamPlanCase with_ties;
    with_ties.graph = testing::gpt_graph({2, 4, 32, 8, 8, 64, 40});
    with_ties.strategy =
        testing::strategy_of(testing::kTwoTeamStages, with_ties.graph, with_ties.cluster);
    testing::add_bodies(with_ties.strategy, with_ties.graph, {{5, 3}, {1, 1}});
    return with_ties;
  }();
  EXPECT_EQ(fault_of(tied, tied.strategy),
            "strategy: stage 0 has teams, and shares 'wte' with another stage (0, 1): the two do "
            "not go together yet");
}

TEST(VerifyStrategy, NamesFaultsOfTeams) {
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[1].further[1].push_back(7); }),
            "strategy: stage 1: replica 1 has 3 members, its body 2: all replicas of a body have "
            "as many");
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[1].further.pop_back(); }),
            "strategy: stage 1 has 2 replicas, and further members of 1");
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[1].further[1][0] = 1; }),
            "strategy: stage 1: device 1 does not exist or serves another stage");
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[0].body = 1; }),
            "strategy: stage 0 has body 1, not 0");
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[1].body = 2; }),
            "strategy: stage 1 has body 2 of 2");
  EXPECT_EQ(fault_with([](Strategy& s) { s.stages[1].body = kNone; }),
            "strategy: stage 1 has further members, but no body");
  EXPECT_EQ(fault_with([](Strategy& s) { s.bodies.push_back(s.bodies[0]); }),
            "strategy: 3 bodies for 2 stages with teams");
  EXPECT_EQ(fault_with([](Strategy& s) { std::swap(s.bodies[0], s.bodies[1]); }).substr(0, 45),
            "strategy: stage 0 has 17 operators, and its b");
  EXPECT_EQ(
      fault_with([](Strategy& s) { s.bodies[1].step_end.clear(); }),
      "strategy: stage 1: team body: backward: summands of the gradient of 'h1_g_ln2' are left "
      "out");
}

TEST(PrintStrategy, SaysTeamsAndBodies) {
  const TeamPlanCase of;
  const std::string text = print_strategy(of.strategy, of.graph, of.cluster);
  EXPECT_NE(text.find("stage 0 body=0: a/0+b/0=4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("stage 1 body=1: a/1+a/2=3 b/1+b/2=1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("body 0\nmembers 5:3\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace agpcs
