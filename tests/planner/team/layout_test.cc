// SPDX-License-Identifier: Apache-2.0
// Layouts whose stages have teams.
#include "planner/seed/layout/layout.h"

#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/shares.h"
#include "planner/seed/fit_memory.h"
#include "planner/team/stage_teams.h"
#include "tests/planner/problem/layouts.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/team_plans.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::strategies_of;

using ::testing::ElementsAre;

std::string refusal(std::string_view text) {
  const auto layout = parse_layout(text, testing::eight_devices());
  EXPECT_EQ(layout.status().code(), StatusCode::kUsage) << text;
  return layout.status().message();
}

TEST(TeamLayout, IsRefusedWithTheReason) {
  EXPECT_EQ(refusal("a/0+a/1,a/2,parts=1+1"),
            "layout: stage 'a/0+a/1,a/2,parts=1+1' has parts, a replica of 2 devices and one of 1\n"
            "  hint: without parts=, those of teams of unlike size are chosen");
  EXPECT_EQ(refusal("a/0+a/0"), "layout: device a/0 is there twice");
  EXPECT_EQ(refusal("a/0+a/1,parts=5+3+1"),
            "layout: stage 'a/0+a/1,parts=5+3+1' has 3 parts for teams of 2");
  EXPECT_EQ(refusal("a/0,parts=1"),
            "layout: stage 'a/0,parts=1' has parts and no team\n  hint: a/0+a/1 is a team of two");
  EXPECT_EQ(refusal("a/0+a/1,parts=5+x"),
            "layout: 'parts=5+x' has 'x', not a number from 1 to 1000000\n"
            "  hint: parts=5+3 gives the first member of each team 5/8");
  EXPECT_EQ(refusal("a/0+a/1,parts=1+1,parts=1+1"), "layout: 'parts=1+1' comes second");
  EXPECT_THAT(refusal("a/0+a/1|a/2|schedule=zero-bubble"),
              ::testing::StartsWith("layout: a stage has teams, and schedule=zero-bubble parts"));
  EXPECT_THAT(refusal("a/0+a/9"), ::testing::StartsWith("layout: there is no device 'a/9'"));
}

TEST(TeamLayout, EveryCandidateHasTheTeamsAskedFor) {
  const auto problem = testing::problem_of(testing::small_gpt(), testing::eight_devices(), 8);
  const auto strategies = strategies_of(*problem, "a/0+b/0,parts=5+3|b/2+a/2:1,a/1+b/1:3|b/3");
  ASSERT_TRUE(strategies.ok()) << strategies.status().message();
  ASSERT_FALSE(strategies->empty());
  for (const Strategy& strategy : *strategies) {
    const Status valid = verify_strategy(strategy, problem->graph, problem->cluster, 8);
    EXPECT_TRUE(valid.ok()) << valid.message();
    ASSERT_EQ(strategy.stages.size(), 3u);
    EXPECT_THAT(strategy.stages[0].devices, ElementsAre(0));
    EXPECT_THAT(strategy.stages[0].further, ElementsAre(ElementsAre(4)));
    EXPECT_THAT(strategy.bodies[0].parts, ElementsAre(5, 3));
    EXPECT_THAT(strategy.stages[1].devices, ElementsAre(1, 2));  // the fast ones come first
    EXPECT_THAT(strategy.stages[1].further, ElementsAre(ElementsAre(5), ElementsAre(6)));
    EXPECT_GE(strategy.stages[1].shares[0], strategy.stages[1].shares[1]);
    EXPECT_FALSE(strategy.stages[2].has_teams());
    const Result<Evaluated> evaluated = evaluate(*problem, strategy, MadeBy());
    EXPECT_TRUE(evaluated.ok()) << evaluated.status().message();
  }
}

TEST(TeamLayout, ReplicasMayBeUnlike) {
  const auto problem = testing::problem_of(testing::small_gpt(), testing::eight_devices(), 8);
  for (const char* const text : {"b/0+b/1,a/0|a/1", "b/0+b/1:1,a/0:1|a/1"}) {
    const auto strategies = strategies_of(*problem, text);
    ASSERT_TRUE(strategies.ok()) << strategies.status().message();
    ASSERT_FALSE(strategies->empty());
    for (const Strategy& strategy : *strategies) {
      const Status valid = verify_strategy(strategy, problem->graph, problem->cluster, 8);
      EXPECT_TRUE(valid.ok()) << valid.message();
      const StageSpec& spec = strategy.stages[0];
      EXPECT_THAT(spec.devices, ElementsAre(0, 4));
      EXPECT_THAT(spec.further, ElementsAre(ElementsAre(), ElementsAre(5)));
      EXPECT_THAT(spec.bodies, ElementsAre(0, 1));
      EXPECT_EQ(strategy.bodies[0].members(), 1u);
      const bool weighted = std::string_view(text).find(':') != std::string_view::npos;
      const std::int64_t difference = spec.shares[0] - spec.shares[1];
      if (weighted) {
        EXPECT_LE(std::abs(difference), 1);
      } else {
        EXPECT_GE(difference, 0);  // the single device is the faster one
      }
      const Result<Evaluated> evaluated = evaluate(*problem, strategy, MadeBy());
      EXPECT_TRUE(evaluated.ok()) << evaluated.status().message();
    }
  }
  // Fewer samples than replicas: no stage.
  const auto few = testing::problem_of(testing::small_gpt(), testing::eight_devices(), 1);
  EXPECT_TRUE(strategies_of(*few, "b/0+b/1,a/0")->empty());
}

/// Two devices, alike but for their memory, in a team that computes all of a GPT.
struct UnlikeMemory {
  explicit UnlikeMemory(std::int64_t small)
      : problem(testing::problem_of(
            testing::gpt_graph({2, 64, 256, 8, 8, 1024, 400, false}),
            testing::cluster_of(fmt::format("kind big memory=16e9 bandwidth=900e9 fp32=15e12\n"
                                            "kind small memory={} bandwidth=900e9 fp32=15e12\n"
                                            "host a big 1 nic=300e9 nic-latency=1e-6\n"
                                            "host b small 1 nic=300e9 nic-latency=1e-6\n",
                                            small)),
            8)),
        evaluator(*problem) {}

  /// The strategy with these parts.
  Strategy team(TeamParts parts) {
    StageTeams teams(*problem);
    FormedStage made = *teams.make({all_ops(*problem), {{0, 1}}, 1, std::move(parts), {}, true});
    Strategy strategy;
    strategy.stage_of.assign(problem->graph.ops.size(), 0);
    made.spec.body = 0;
    strategy.stages = {std::move(made.spec)};
    strategy.bodies = {std::move(made.body)};
    return strategy;
  }

  /// What the device that lacks most lacks of the layout's strategy of one micro-batch; more than
  /// any memory if there is none.
  std::int64_t lack_of(std::string_view layout) {
    const auto made = strategies_of(*problem, layout);
    EXPECT_TRUE(made.ok()) << made.status().message();
    for (const Strategy& one : *made) {
      if (one.micro_batches == 1) return evaluator.lacking(one);
    }
    return std::numeric_limits<std::int64_t>::max();
  }

  std::unique_ptr<const Problem> problem;
  Evaluator evaluator;
};

TEST(TeamLayout, PartsFollowFromMemoryWhereAMemberLacksIt) {
  constexpr std::int64_t kTiny = 1000;
  UnlikeMemory tiny(kTiny);
  Strategy halves = tiny.team({1, 1});
  const std::int64_t even = tiny.evaluator.lacking(halves) + kTiny;
  const TeamBody body = halves.bodies[0];
  halves.bodies[0] = *OtherParts(tiny.problem->graph, body).with({3, 1});
  const std::int64_t quarter = tiny.evaluator.lacking(halves) + kTiny;
  ASSERT_LT(quarter, even);
  UnlikeMemory some((even + quarter) / 2);
  Strategy strategy = some.team({1, 1});
  ASSERT_GT(some.evaluator.lacking(strategy), 0);
  EXPECT_TRUE(fit_parts(*some.problem, some.evaluator, strategy, {0}));
  EXPECT_LE(some.evaluator.lacking(strategy), 0);
  EXPECT_GT(strategy.bodies[0].parts[0], strategy.bodies[0].parts[1]);
  const Status valid = verify_strategy(strategy, some.problem->graph, some.problem->cluster, 8);
  EXPECT_TRUE(valid.ok()) << valid.message();
  // A layout that leaves parts to the planner fits; one that says them has them.
  EXPECT_LE(some.lack_of("a/0+b/0"), 0);
  EXPECT_GT(some.lack_of("a/0+b/0,parts=1+1"), 0);
  UnlikeMemory none(quarter / 8);  // nothing helps
  Strategy lacking = none.team({1, 1});
  EXPECT_FALSE(fit_parts(*none.problem, none.evaluator, lacking, {0}));
  EXPECT_GT(none.evaluator.lacking(lacking), 0);
}

TEST(TeamLayout, ASharedParameterIsRefusedByName) {
  const auto problem = testing::problem_of(testing::gpt_graph(), testing::eight_devices(), 8);
  const auto strategies = strategies_of(*problem, "a/0+a/1|a/2");
  ASSERT_FALSE(strategies.ok());
  EXPECT_EQ(strategies.status().code(), StatusCode::kInfeasible);
  EXPECT_EQ(strategies.status().message(),
            "layout: stage 0 has teams, and shares 'wte' with another stage (0, 1): the two do not "
            "go together yet\n  hint: fewer stages, or no team in these");
}

}  // namespace
}  // namespace agpcs
