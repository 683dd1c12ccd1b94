// SPDX-License-Identifier: Apache-2.0
// Stages whose replicas have unlike bodies, from strategy to plan, through its text, and back; what
// their members hold; what is refused.
#include "ir/plan/body/body.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/plan_against.h"
#include "ir/strategy/teams.h"
#include "planner/problem/strategy_of_plan.h"
#include "tests/planner/team/team_plans.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Parts = std::vector<std::vector<std::int64_t>>;

constexpr const char* kUnlike =
    "micro-batches 2\nstage a/0+a/1+a/2=2 b/0=1 b/1+b/2=1 : embed..h0_x2\nstage b/3=4 : *\n";
const Parts kUnlikeParts = {{5, 4, 3}, {1}, {1, 1}};

struct UnlikeCase {
  Graph graph = testing::small_gpt();
  Cluster cluster = testing::eight_devices();
  Strategy strategy;
  explicit UnlikeCase(const std::string& text = kUnlike, const Parts& parts = kUnlikeParts,
                      double link = 3e11) {
    strategy = testing::strategy_of(text, graph, cluster);
    testing::add_unlike_bodies(strategy, graph, parts, link);
  }
  Plan plan() const { return testing::team_plan_of(graph, cluster, strategy, 8); }
  std::string fault() const {
    const Status sound = verify_strategy(strategy, graph, cluster, 8);
    return sound.ok() ? "" : sound.message();
  }
};

TEST(UnlikeTeams, GoThroughAPlanAndBack) {
  const std::vector<std::pair<std::string, Parts>> cases = {
      {kUnlike, kUnlikeParts},
      {"micro-batches 2\nstage a/0=3 b/0+b/1=1 : *\n", {{1}, {1, 1}}},
      {"micro-batches 3\nstage a/0+b/0=2 a/1+b/1=1 : *\n", {{5, 3}, {1, 1}}},
      {"micro-batches 2\nstage a/0+a/1=1 a/2=1 a/3=1 b/0+b/1=1 : embed..h0_x1\nstage b/2+b/3=4 : "
       "*\n",
       {{1, 1}, {1}, {1}, {1, 1}}}};
  for (const auto& [text, parts] : cases) {
    for (const double link : {1e8, 3e11}) {
      UnlikeCase of(text, parts, link);
      if (of.strategy.stages.size() > 1 && !of.strategy.stages[1].further.empty()) {
        of.strategy.stages[1].body = static_cast<int>(of.strategy.bodies.size());
        of.strategy.bodies.push_back(
            testing::body_of_parts(of.strategy, of.graph, 1, {1, 1}, link));
      }
      const Plan plan = of.plan();
      const Status against = verify_plan_against(plan, of.graph, of.cluster);
      EXPECT_TRUE(against.ok()) << against.message();
      const Result<Plan> read = parse_plan(print_plan(plan), "t.plan");
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_EQ(print_plan(*read), print_plan(plan));
      const Result<Strategy> back = strategy_of_plan(*read, of.graph, of.cluster);
      ASSERT_TRUE(back.ok()) << back.status().message();
      for (std::size_t s = 0; s < of.strategy.stages.size(); ++s) {
        if (8 % of.strategy.micro_batches != 0) {
          of.strategy.stages[s].odd = back->stages[s].odd;
        }
      }
      EXPECT_EQ(*back, of.strategy);
      EXPECT_TRUE(has_unlike_teams(*back));
    }
  }
}

// A member needs what it needs in a stage of its like, and the memory of the slices of gradients.
TEST(UnlikeTeams, MembersNeedTheMemoryOfTheirLikeAndOfSlices) {
  const UnlikeCase of;
  const Plan plan = of.plan();
  const Result<std::vector<MemoryUse>> unlike = peak_memory(plan, of.graph);
  ASSERT_TRUE(unlike.ok());
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> alike = {
      {"micro-batches 2\nstage a/0+a/1+a/2=2 b/0+b/1+b/2=2 : embed..h0_x2\nstage b/3=4 : *\n",
       kUnlikeParts[0]},
      {"micro-batches 2\nstage a/0=2 b/0=2 : embed..h0_x2\nstage b/3=4 : *\n", {1}},
      {"micro-batches 2\nstage a/0+b/0=3 a/1+b/1=1 : embed..h0_x2\nstage b/3=4 : *\n",
       kUnlikeParts[2]}};
  for (std::size_t i = 0; i < alike.size(); ++i) {
    if (alike[i].second.size() == 1) continue;  // such a stage has no bodies
    Strategy same = testing::strategy_of(alike[i].first, of.graph, of.cluster);
    testing::add_bodies(same, of.graph, {alike[i].second});
    EXPECT_EQ(same.bodies[0], of.strategy.bodies[i]);
    const Plan like = testing::team_plan_of(of.graph, of.cluster, same, 8);
    const Result<std::vector<MemoryUse>> uses = peak_memory(like, of.graph);
    ASSERT_TRUE(uses.ok());
    const std::size_t replica = like.stages[0].samples[0] == plan.stages[0].samples[i] ? 0 : 1;
    for (std::size_t m = 0; m < alike[i].second.size(); ++m) {
      const MemoryUse& own = (*unlike)[static_cast<std::size_t>(plan.stages[0].members(i)[m])];
      const MemoryUse& want = (*uses)[static_cast<std::size_t>(like.stages[0].members(replica)[m])];
      EXPECT_EQ(own.parameters, want.parameters);
      EXPECT_EQ(own.optimizer, want.optimizer);
      EXPECT_EQ(own.gradients, 2 * want.gradients);
      EXPECT_EQ(own.total(), want.total() + want.gradients);
    }
  }
}

TEST(UnlikeTeams, FaultsAreNamed) {
  EXPECT_EQ(UnlikeCase().fault(), "");
  UnlikeCase of;
  of.strategy.stages[0].bodies = {0, 2, 1};
  EXPECT_NE(of.fault().find("replica 1 has body 2 before body 1"), std::string::npos);
  of.strategy.stages[0].bodies = {0, 1};
  EXPECT_NE(of.fault().find("stage 0 has 3 replicas, and bodies of 2"), std::string::npos);
  of.strategy.stages[0].bodies = {0, 1, 1};
  of.strategy.bodies.pop_back();
  EXPECT_NE(of.fault().find("replica 2 has 2 members, its body 1"), std::string::npos);
  UnlikeCase twice("micro-batches 2\nstage a/0+b/0=2 a/1+b/1=2 : *\n", {{5, 3}, {1, 1}});
  twice.strategy.bodies[1] = twice.strategy.bodies[0];
  EXPECT_NE(twice.fault().find("stage 0 has a body twice"), std::string::npos);
}

}  // namespace
}  // namespace agpcs
