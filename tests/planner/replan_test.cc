// SPDX-License-Identifier: Apache-2.0
#include "planner/replan.h"

#include "codegen/lower.h"
#include "cost_model/explain/drifted_cluster.h"
#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/plan_against.h"
#include "planner/plan_problem.h"
#include "planner/problem/strategy_of_plan.h"
#include "planner/refine/moves/moves.h"
#include "tests/planner/problem/problems.h"
#include "tests/support/team_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::chain;
using testing::cluster_of;
using testing::problem_of;
using testing::strategy_of;

constexpr std::int64_t kBatch = 256;

Cluster four_equal() {
  return cluster_of(
      "kind k fp32=5e12 bandwidth=300e9\n"
      "host a k 2 nic=3e9\nhost b k 2 nic=3e9\n");
}

std::unique_ptr<const Problem> problem_on(Cluster cluster) {
  ProblemOptions options;
  options.ranks = Ranks::kAll;
  return problem_of(chain(6, 512), std::move(cluster), kBatch, options);
}

Plan plan_of(const Problem& problem, const std::string& text) {
  const Strategy strategy = strategy_of(text, problem.graph, problem.cluster);
  return *lower(problem.graph, problem.cluster, problem.training, strategy, MadeBy());
}

constexpr char kEqual[] = "stage a/0=64 a/1=64 b/0=64 b/1=64 : *\n";
constexpr char kPipeline[] =
    "micro-batches 4\nstage a/0=32 a/1=32 : h0..a2\nstage b/0=32 b/1=32 : *\n";

TEST(Replan, AHardwareThatIsAsPlannedNeedsNoOtherPlan) {
  const auto problem = problem_on(four_equal());
  ReplanOptions any;
  any.least_gain = -100;
  const Plan running = (*replan(*problem, plan_of(*problem, kEqual), any))->best.plan;
  const auto found = replan(*problem, running, {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_FALSE(found->has_value());
}

TEST(Replan, GradientsTravelAsTheyDid) {
  const auto problem_of_bf16 = [](Cluster cluster) {
    return problem_of(chain(6, 512), std::move(cluster), kBatch, {.ranks = Ranks::kAll},
                      DType::kBf16);
  };
  const Plan running = plan_of(*problem_of_bf16(four_equal()), kEqual);
  const auto now = problem_of_bf16(drifted_cluster(four_equal(), {{{1, 2.5}}, {}}));
  const auto found = replan(*now, running, {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->best.plan.training.wire_type, DType::kBf16);
}

TEST(Replan, ASlowDeviceGetsFewerSamples) {
  const Plan running = plan_of(*problem_on(four_equal()), kEqual);
  const auto now = problem_on(drifted_cluster(four_equal(), {{{1, 2.5}}, {}}));
  const auto found = replan(*now, running, {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->has_value());
  const Replanned& better = **found;
  EXPECT_LT(better.best.estimate.step_seconds, 0.97 * better.running_step_seconds);
  EXPECT_EQ(better.best.plan.rank_count(), 4);
  EXPECT_EQ(verify_plan_against(better.best.plan, now->graph, now->cluster).message(), "");
}

TEST(Replan, TheRunningPlanIsSimulatedOnTheHardwareAsItIsNow) {
  const auto before = problem_on(four_equal());
  const Plan running = plan_of(*before, kEqual);
  const auto now = problem_on(drifted_cluster(four_equal(), {{{1, 2.5}}, {}}));
  ReplanOptions any;
  any.least_gain = -100;
  const double expected = simulate(running, now->graph, now->cluster, now->costs)->step_seconds;
  EXPECT_DOUBLE_EQ((*replan(*now, running, any))->running_step_seconds, expected);
}

TEST(Replan, TwiceTheSameBytes) {
  const Plan running = plan_of(*problem_on(four_equal()), kPipeline);
  const auto now = problem_on(drifted_cluster(four_equal(), {{{1, 2.5}}, {}}));
  ReplanOptions options;
  options.seed = 7;
  const auto text = [&] { return print_plan((*replan(*now, running, options))->best.plan); };
  EXPECT_EQ(text(), text());
}

TEST(Replan, ADeviceThatIsNotWorthItHasAnIdleRank) {
  // So many samples that each device is worth what it computes.
  ProblemOptions options;
  options.ranks = Ranks::kAll;
  const auto large = [&](Cluster cluster) {
    return problem_of(chain(6, 512), std::move(cluster), 1 << 18, options);
  };
  const auto before = large(four_equal());
  const Plan running = plan_of(*before, "stage a/0=65536 a/1=65536 b/0=65536 b/1=65536 : *\n");
  const auto now = large(drifted_cluster(four_equal(), {{{1, 400}}, {}}));
  const auto found = replan(*now, running, {});
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
  const Plan& plan = (*found)->best.plan;
  EXPECT_EQ(plan.rank_count(), 4);
  ASSERT_TRUE(plan.stages.back().idle());
  EXPECT_EQ(plan.stages.back().devices, std::vector<std::string>{"a/1"});
  // Once it is as fast as the others again it is worth it, for a plan that begins from this one.
  const auto later = replan(*before, plan, {});
  ASSERT_TRUE(later.ok() && later->has_value()) << later.status().message();
  EXPECT_FALSE((*later)->best.plan.stages.back().idle());
}

TEST(Replan, LostDevicesAreReplacedByTheOthers) {
  for (const char* text : {kEqual, kPipeline}) {
    const Plan running = plan_of(*problem_on(four_equal()), text);
    const auto now = problem_on(without_devices(four_equal(), {0}));
    const auto found = replan(*now, running, {});
    ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
    EXPECT_EQ((*found)->best.plan.rank_count(), 3);
    EXPECT_TRUE(std::isinf((*found)->running_step_seconds));
  }
}

TEST(Replan, AStageThatLostAllItsDevicesIsPlannedAnew) {
  const Plan running = plan_of(*problem_on(four_equal()), kPipeline);
  const auto now = problem_on(without_devices(four_equal(), {2, 3}));
  EXPECT_TRUE(warm_starts(*now, running).empty());
  const auto found = replan(*now, running, {});
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
  EXPECT_EQ((*found)->best.plan.rank_count(), 2);
}

TEST(Replan, CancelledItEndsWithoutAPlan) {
  const Plan running = plan_of(*problem_on(four_equal()), kEqual);
  const auto now = problem_on(drifted_cluster(four_equal(), {{{1, 2.5}}, {}}));
  const std::atomic<bool> cancel = true;
  ReplanOptions options;
  options.interrupted = &cancel;
  const auto found = replan(*now, running, options);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_FALSE(found->has_value());
}

/// A GPT whose single sample is best computed by a team, on four alike devices with fast links.
std::unique_ptr<const Problem> team_problem_on(Cluster cluster, bool teams = true) {
  ProblemOptions options;
  options.ranks = Ranks::kAll;
  options.choose_teams = teams;
  return problem_of(testing::gpt_graph({2, 256, 1024, 16, 16, 4096, 1000, false}),
                    std::move(cluster), 1, options);
}

Cluster four_on_a_host() {
  return cluster_of(
      "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "host a gpu 4 bandwidth=300e9 latency=1e-6\n");
}

Plan planned_with_teams() {
  const auto problem = team_problem_on(four_on_a_host());
  const Result<Planned> planned = plan_problem(*problem, {});
  AGPCS_CHECK(planned.ok() && !planned->best.plan.bodies.empty(), "no teams");
  return planned->best.plan;
}

TEST(Replan, ASlowMemberOfATeamGetsASmallerPart) {
  const Plan running = planned_with_teams();
  const auto now = team_problem_on(drifted_cluster(four_on_a_host(), {{{1, 2}}, {}}));
  const auto found = replan(*now, running, {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->has_value());
  const Plan& plan = (*found)->best.plan;
  EXPECT_LT((*found)->best.estimate.step_seconds, 0.97 * (*found)->running_step_seconds);
  EXPECT_EQ(verify_plan_against(plan, now->graph, now->cluster).message(), "");
  ASSERT_FALSE(plan.bodies.empty());
  for (const PlanStage& stage : plan.stages) {
    if (!stage.has_teams()) continue;
    const std::vector<std::int64_t>& parts =
        plan.bodies[static_cast<std::size_t>(stage.body)].parts;
    for (std::size_t r = 0; r < stage.ranks.size(); ++r) {
      const std::vector<int> members = stage.members(r);
      for (std::size_t m = 0; m < members.size(); ++m) {
        if (device_of_rank(plan, members[m]) != "a/1") continue;
        EXPECT_LT(parts[m], *std::ranges::max_element(parts));
      }
    }
  }
}

TEST(Replan, ATeamThatLostAMemberIsFormedAnew) {
  const Plan running = planned_with_teams();
  const auto now = team_problem_on(without_devices(four_on_a_host(), {0}));
  const auto found = replan(*now, running, {});
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
  EXPECT_EQ((*found)->best.plan.rank_count(), 3);
  EXPECT_TRUE(std::isinf((*found)->running_step_seconds));
  EXPECT_EQ(verify_plan_against((*found)->best.plan, now->graph, now->cluster).message(), "");
}

TEST(Replan, APlanWithTeamsIsLeftForOneWithoutWhereTheirLinksGotSlow) {
  const Plan running = planned_with_teams();
  const auto now =
      team_problem_on(cluster_of("kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
                                 "host a gpu 4 bandwidth=1e7 latency=1e-3\n"));
  const auto found = replan(*now, running, {});
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
  EXPECT_TRUE((*found)->best.plan.bodies.empty());
  EXPECT_EQ((*found)->best.plan.rank_count(), 4);
}

TEST(WarmStarts, OfAPlanWithTeamsHaveItsTeamsNewOnesAndNone) {
  const Plan running = planned_with_teams();
  const auto with_teams = [](const std::vector<Strategy>& starts) {
    return std::ranges::count_if(starts,
                                 [](const Strategy& start) { return !start.bodies.empty(); });
  };
  for (const bool slow : {false, true}) {
    const HardwareDrift drift = {{{1, slow ? 2.0 : 1.0}}, {}};
    const auto problem = team_problem_on(drifted_cluster(four_on_a_host(), drift));
    const std::vector<Strategy> starts = warm_starts(*problem, running);
    ASSERT_GE(starts.size(), 2U);
    EXPECT_EQ(starts[0], *strategy_of_plan(running, problem->graph, problem->cluster));
    EXPECT_GE(with_teams(starts), slow ? 2 : 1);
    EXPECT_LT(with_teams(starts), static_cast<std::ptrdiff_t>(starts.size()));
    for (const Strategy& start : starts) {
      EXPECT_TRUE(verify_strategy(start, problem->graph, problem->cluster, 1).ok());
    }
  }
  const auto lost = team_problem_on(without_devices(four_on_a_host(), {2}));
  EXPECT_GE(with_teams(warm_starts(*lost, running)), 1);
  // A problem that chooses no teams has no such starts.
  const auto alone = team_problem_on(four_on_a_host(), false);
  const std::vector<Strategy> starts = warm_starts(*alone, running);
  EXPECT_FALSE(starts.empty());
  EXPECT_EQ(with_teams(starts), 0);
}

TEST(WarmStarts, BeginWithTheRunningPlanItself) {
  const auto problem = problem_on(four_equal());
  const Plan running = plan_of(*problem, kPipeline);
  const std::vector<Strategy> starts = warm_starts(*problem, running);
  ASSERT_GE(starts.size(), 2U);
  EXPECT_EQ(starts[0], *strategy_of_plan(running, problem->graph, problem->cluster));
  for (const Strategy& start : starts) {
    EXPECT_TRUE(verify_strategy(start, problem->graph, problem->cluster, kBatch).ok());
  }
}

}  // namespace
}  // namespace agpcs
