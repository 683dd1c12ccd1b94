// SPDX-License-Identifier: Apache-2.0
// Teams from strategy to plan, through the plan's text, and back.
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/plan_against.h"
#include "planner/problem/strategy_of_plan.h"
#include "tests/planner/team/team_plans.h"

#include <agpcs/digest.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::TeamPlanCase;

std::string message_of(const Status& status) { return status.ok() ? "" : status.message(); }

TEST(TeamPlan, IsTheGoldenOne) {
  const TeamPlanCase of;
  std::ifstream file(AGPCS_TEAM_PLAN);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(print_plan(of.plan), golden);
}

TEST(TeamPlan, VerifiesAgainstModelAndCluster) {
  const TeamPlanCase of;
  EXPECT_EQ(message_of(verify_plan(of.plan)), "");
  EXPECT_EQ(message_of(verify_plan_against(of.plan, of.graph, of.cluster)), "");
}

TEST(TeamPlan, IsItsText) {
  const TeamPlanCase of;
  const std::string text = print_plan(of.plan);
  const Result<Plan> again = parse_plan(text, "t.plan");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(print_plan(*again), text);
  EXPECT_EQ(message_of(verify_plan_against(*again, of.graph, of.cluster)), "");
}

TEST(TeamPlan, GoesBackToItsStrategy) {
  // Links of several speeds have other bodies; parts of three members, and one team of five.
  const std::vector<std::pair<std::string, std::vector<std::vector<std::int64_t>>>> cases = {
      {testing::kTwoTeamStages, {{5, 3}, {1, 1}}},
      {"micro-batches 2\nstage a/0=4 : embed..h0_x2\nstage b/0+a/1+a/3=4 : *\n", {{5, 4, 3}}},
      {"micro-batches 2\nstage a/0+a/1+b/3+b/1+b/2=4 : *\n", {{2, 2, 1, 1, 1}}},
      {"micro-batches 3\nstage a/0+a/1=2 b/0+b/1=1 : embed..h0_x1\nstage a/2=3 : *\n", {{1, 1}}},
  };
  std::size_t with_step_end = 0, bodies = 0;
  for (const auto& [text, parts] : cases) {
    for (const double link : {1e8, 1e10, 3e11}) {
      const Graph graph = testing::small_gpt();
      const Cluster cluster = testing::eight_devices();
      Strategy strategy = testing::strategy_of(text, graph, cluster);
      testing::add_bodies(strategy, graph, parts, link);
      const Plan plan = testing::team_plan_of(graph, cluster, strategy, 8);
      EXPECT_EQ(message_of(verify_plan(plan)), "") << print_plan(plan);
      const Result<Plan> read = parse_plan(print_plan(plan), "t.plan");
      ASSERT_TRUE(read.ok()) << read.status().message();
      const Result<Strategy> back = strategy_of_plan(*read, graph, cluster);
      ASSERT_TRUE(back.ok()) << back.status().message();
      // A plan says who takes a sample less, even where the strategy has no wish.
      for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
        if (8 % strategy.micro_batches != 0) strategy.stages[s].odd = back->stages[s].odd;
      }
      EXPECT_EQ(*back, strategy);
      EXPECT_EQ(print_plan(testing::team_plan_of(graph, cluster, *back, 8)), print_plan(plan));
      for (const TeamBody& body : strategy.bodies) {
        ++bodies;
        with_step_end += body.step_end.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_EQ(bodies, 15U);
  EXPECT_GT(with_step_end, 0U);
}

std::string text_of(const std::vector<Transfer>& transfers) {
  std::string text;
  for (const Transfer& t : transfers) {
    text +=
        fmt::format("{}rank {} rows {}+{}", text.empty() ? "" : "; ", t.peer, t.first_row, t.rows);
  }
  return text;
}

// Devices in the cluster's order: a/0 a/1 a/2 b/0 b/1 b/2 are the ranks 0 to 5.
TEST(TeamPlan, EachMemberGetsRowsFromOneMember) {
  const TeamPlanCase of;
  EXPECT_EQ(of.plan.stages[0].members(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(of.plan.stages[1].members(1), (std::vector<int>{4, 5}));
  EXPECT_EQ(of.plan.stages[1].all_ranks(), (std::vector<int>{1, 2, 4, 5}));
  EXPECT_EQ(of.plan.rank_count(), 6);
  EXPECT_EQ(of.plan.stage_of_rank(5), 1);
  EXPECT_EQ(device_of_rank(of.plan, 5), "b/2");
  EXPECT_EQ(text_of(transfers(of.plan, 0, 0, 0)), "rank 1 rows 0+3; rank 4 rows 3+1");
  EXPECT_EQ(text_of(transfers(of.plan, 0, 3, 0)), "rank 2 rows 0+3; rank 5 rows 3+1");
  EXPECT_EQ(text_of(transfers(of.plan, 0, 5, 0)), "rank 3 rows 0+1");
  EXPECT_EQ(text_of(transfers(of.plan, 0, 5, 0, true)), "rank 3 rows 0+1");
}

TEST(TeamPlan, UnlikeTeamsSendEachMemberWhatItNeeds) {
  // One device sends to a team of three, a/0 to b/0, a/1 and a/3; gradients come from the first.
  const TeamPlanCase of("micro-batches 2\nstage a/0=4 : embed..h0_x2\nstage b/0+a/1+a/3=4 : *\n",
                        {{5, 4, 3}});
  EXPECT_EQ(text_of(transfers(of.plan, 0, 0, 0)),
            "rank 3 rows 0+4; rank 1 rows 0+4; rank 2 rows 0+4");
  EXPECT_EQ(text_of(transfers(of.plan, 0, 0, 0, true)), "rank 3 rows 0+4");
  EXPECT_EQ(text_of(transfers(of.plan, 0, 2, 0)), "rank 0 rows 0+4");
  EXPECT_EQ(text_of(transfers(of.plan, 0, 2, 0, true)), "");
  EXPECT_TRUE(sends(of.plan, 3));
  EXPECT_FALSE(sends(of.plan, 2));
}

TEST(TeamPlan, EveryTransferHasItsOtherEnd) {
  const TeamPlanCase of(
      "micro-batches 2\nstage a/0+b/0+b/1=3 a/1+b/2+b/3=1 : embed..h0_x2\n"
      "stage a/2+a/3=4 : *\n",
      {{2, 1, 1}, {1, 1}});
  for (const bool gradients : {false, true}) {
    int messages = 0;
    for (int rank = 0; rank < of.plan.rank_count(); ++rank) {
      for (const Transfer& t : transfers(of.plan, 0, rank, 0, gradients)) {
        int back = 0;
        for (const Transfer& other : transfers(of.plan, 0, t.peer, 0, gradients)) {
          back += other.peer == rank && other.rows == t.rows ? 1 : 0;
        }
        EXPECT_EQ(back, 1) << rank << " to " << t.peer;
        ++messages;
      }
    }
    // Each of two replicas of three members exchanges with one team of two: both ends of what the
    // receiving members get.
    EXPECT_EQ(messages, gradients ? 2 * 2 * 3 : 2 * 2 * 2);
  }
}

TEST(TeamPlan, MembersHoldTheirPartsOfBuckets) {
  const TeamPlanCase of;
  for (const PlanBucket& bucket : of.plan.buckets) {
    const PlanBody& body = of.plan.bodies[static_cast<std::size_t>(bucket.stage)];
    std::int64_t parts = 0, copies = 0, held = 0;
    for (const BucketMember& member : bucket.members) {
      const BodyTensor* const own = find_parameter(body, member.parameter);
      ASSERT_NE(own, nullptr) << member.parameter;
      (own->forms.front().lying == Lying::kPart ? parts : copies) += member.elements;
    }
    for (std::size_t m = 0; m < body.members(); ++m) {
      held += member_elements(of.plan, bucket, bucket.stage, m);
    }
    EXPECT_GT(parts, 0);
    EXPECT_EQ(held, parts + copies * static_cast<std::int64_t>(body.members()));
  }
}

/// Returns the fault that model and cluster find in a changed plan.
template <typename Change>
std::string fault_with(Change change) {
  TeamPlanCase of;
  change(of.plan.bodies[0]);
  return message_of(verify_plan_against(of.plan, of.graph, of.cluster));
}

BodyOperator& operator_named(PlanBody& body, const std::string& name) {
  return *std::find_if(body.operators.begin(), body.operators.end(),
                       [&](const BodyOperator& one) { return one.name == name; });
}

TEST(TeamPlan, FaultsThatTheModelTellsAreNamed) {
  EXPECT_EQ(fault_with([](PlanBody& b) { operator_named(b, "h0_act").split = "rows"; }),
            "plan: error: body t0: 'h0_act' has no split 'rows'\n"
            "  hint: its splits are whole, axis 1, axis 2");
  EXPECT_EQ(fault_with([](PlanBody& b) { operator_named(b, "h0_act").name = "h0_relu"; }),
            "plan: error: body t0: 'h0_relu' comes where the model's stage has 'h0_act'\n"
            "  hint: compile again");
  EXPECT_EQ(fault_with([](PlanBody& b) {
              BodyOperator& one = operator_named(b, "h0_act");
              one.split.clear();
              one.division = -1;
            }),
            "plan: error: body t0: 'h0_up' is needed as copy, and as part:2:d0\n"
            "  hint: a tensor of several forms is listed, with what each is made of");
  EXPECT_EQ(fault_with([](PlanBody& b) { b.tensors[2].shape[1].fixed = 8; }),
            "plan: error: body t0: 'x' is tensor fp32 samplesx8x32 gradient=yes\n"
            "  the model has tensor fp32 samplesx4x32 gradient=yes\n  hint: compile again");
  EXPECT_EQ(fault_with([](PlanBody& b) { b.tensors[2].name = "y"; }),
            "plan: error: body t0: no operator of the stage has a tensor 'y'");
  EXPECT_EQ(fault_with([](PlanBody& b) { operator_named(b, "h0_ln1").gradient_sum = false; }),
            "plan: error: body t0: 'h0_ln1' is needed as copy/sum, and as copy\n"
            "  hint: a tensor of several forms is listed, with what each is made of");
  EXPECT_EQ(fault_with([](PlanBody& b) { operator_named(b, "h0_x2").gradient_sum = true; }),
            "plan: error: body t0: 'h0_x1' is needed as copy/sum, and as copy\n"
            "  hint: a tensor of several forms is listed, with what each is made of");
  EXPECT_EQ(
      fault_with([](PlanBody& b) {  // an operator before the exchange that it needs
        ++b.forward[2].last;
        ++b.forward[4].first;
      }),
      "plan: error: body t0 of stage s0: team body: forward: 'h0_proj' reads 'h0_proj0', which "
      "is not there yet");
}

TEST(TeamPlan, LacksMemoryByMember) {
  TeamPlanCase of;
  of.cluster.kinds[1].memory_bytes = 60000;
  of.plan.cluster_digest = digest_of(print_cluster(of.cluster));
  EXPECT_EQ(
      message_of(verify_plan_against(of.plan, of.graph, of.cluster)),
      "b/0 (rank 3, stage s0) lacks 17.6kB: it has 60.0kB and needs 77.6kB\n"
      "  parameters 15.4kB, gradients 15.4kB, activations 33.9kB, transfers 4.10kB, workspace "
      "8.70kB\n"
      "  hint: more micro-batches (now 2), a smaller batch (now 8), more devices or more "
      "stages");
}

}  // namespace
}  // namespace agpcs
