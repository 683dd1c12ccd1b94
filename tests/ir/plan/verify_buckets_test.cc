// SPDX-License-Identifier: Apache-2.0
// Plans whose ranks divide buckets, and those whose stages share them.
#include "ir/base/check.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "tests/ir/plan/text.h"
#include "tests/support/shard_plan.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::kPlanText;

std::string message_of(const std::string& text) {
  const Result<Plan> plan = parse_plan(text, "m.plan");
  return plan.ok() ? "accepted" : plan.status().message();
}

/// What a plan is refused with in whose text `from` has become `to`.
std::string message_of(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  AGPCS_CHECK(at != std::string::npos, "no '{}' in\n{}", from, text);
  return message_of(text.replace(at, from.size(), to));
}

std::string message_with(std::string_view from, std::string_view to) {
  return message_of(std::string(kPlanText), from, to);
}

std::string message_of_sharded(std::string_view from, std::string_view to) {
  return message_of(testing::sharded_plan_text(), from, to);
}

TEST(ShardedBuckets, RanksMayDivideTheOptimizersState) {
  const std::string text = testing::sharded_plan_text();
  const Result<Plan> plan = parse_plan(text, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), text);
  const PlanBucket& bucket = plan->buckets[1];
  EXPECT_EQ(bucket.parts, (std::vector<std::int64_t>{96, 48}));
  const ElementRange first = owned_elements(*plan, bucket, 0);
  const ElementRange second = owned_elements(*plan, bucket, 1);
  EXPECT_EQ(first.begin, 0);
  EXPECT_EQ(first.end, 96);
  EXPECT_EQ(second.begin, 96);
  EXPECT_EQ(second.end, 144);
  EXPECT_EQ(owned_elements(*plan, plan->buckets[0], 2).size(), 160);
}

TEST(ShardedBuckets, EachElementOfAShardedBucketHasOneOwner) {
  EXPECT_EQ(message_of_sharded("parts=96,48", "parts=144,0"), "accepted");
  EXPECT_EQ(message_of_sharded("parts=96,48", "parts=96,40"),
            "m.plan: error: bucket b1: parts sum to 136, it has 144 elements\n"
            "  hint: each element has one owner");
  EXPECT_EQ(message_of_sharded("parts=96,48", "parts=48x3"),
            "m.plan: error: bucket b1 has 3 parts for 2 ranks\n"
            "  hint: one part for each rank of its stages; 0 for a rank that owns nothing");
  EXPECT_EQ(message_of_sharded("parts=96,48", "parts=-16,160"),
            "m.plan: error: bucket b1 has a part of -16 elements");
  EXPECT_EQ(message_of_sharded("b0 stage=s1 algorithm=ring type=fp32",
                               "b0 stage=s1 algorithm=ring type=fp32 state=optimizer parts=160"),
            "m.plan: error: bucket b0 divides its state, but only rank 2 holds it\n"
            "  hint: leave out state= and parts=");
  EXPECT_EQ(message_of_sharded("state=optimizer", "state=all"),
            "m.plan:18:45: error: state is 'all'\n"
            "    bucket b1 stage=s0 algorithm=ring type=fp32 state=all parts=96,48 gradients=2 "
            "elements=144\n"
            "                                                ^~~~~~~~~\n"
            "  hint: state=optimizer, state=gradients, state=parameters, or no state= where every "
            "rank keeps all");
}

/// The sharded plan with divided gradients: b1 is summed after each of two micro-batches.
std::string divided_gradients_text() {
  std::string text = testing::sharded_plan_text();
  const auto replace = [&](std::string_view from, std::string_view to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace("state=optimizer", "state=gradients");
  replace("  backward mb=0 after=recv_gradient:c0:0\n",
          "  backward mb=0 after=recv_gradient:c0:0\n"
          "  reduce_scatter b1 mb=0 after=gradients:b1:0\n");
  replace("  reduce_scatter b1 after=gradients:b1:1\n",
          "  reduce_scatter b1 mb=1 after=gradients:b1:1\n");
  replace("  update after=reduce_scatter:b1\n", "  update after=reduce_scatter:b1:1\n");
  return text;
}

std::string message_of_divided(std::string_view from, std::string_view to) {
  return message_of(divided_gradients_text(), from, to);
}

TEST(ShardedBuckets, RanksMayDivideGradients) {
  const std::string text = divided_gradients_text();
  const Result<Plan> plan = parse_plan(text, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), text);
  EXPECT_EQ(plan->buckets[1].state, StateLevel::kGradients);
}

TEST(ShardedBuckets, DividedGradientsAreSummedOnceForEachMicroBatch) {
  using ::testing::HasSubstr;
  EXPECT_THAT(message_of_divided("  reduce_scatter b1 mb=0 after=gradients:b1:0\n", ""),
              HasSubstr("program s0: 'reduce_scatter b1 mb=0' is missing\n"
                        "  hint: stage s0 has 2 micro-batches, sends c0, reduces b1"));
  EXPECT_THAT(message_of_divided("reduce_scatter b1 mb=1 after=gradients:b1:1",
                                 "reduce_scatter b1 mb=0 after=gradients:b1:0"),
              HasSubstr("'reduce_scatter b1 mb=0' appears twice"));
  EXPECT_THAT(message_of_divided("reduce_scatter b1 mb=0 after=gradients:b1:0",
                                 "reduce_scatter b1 after=gradients:b1:0"),
              HasSubstr("'reduce_scatter b1' is not an instruction of this stage"));
  EXPECT_THAT(message_of_divided("reduce_scatter b1 mb=0 after=gradients:b1:0",
                                 "reduce_scatter b1 mb=0 after=backward:0"),
              HasSubstr("'reduce_scatter b1 mb=0' does not wait for 'gradients:b1:0' alone"));
  EXPECT_THAT(message_of_divided("  update after=reduce_scatter:b1:1\n",
                                 "  update after=reduce_scatter:b1:0\n"),
              HasSubstr("'update' may start before 'reduce_scatter b1 mb=1' has finished"));
  EXPECT_THAT(message_of_divided("after=gradients:b1:1", "after=gradients:b1:0"),
              HasSubstr("'reduce_scatter b1 mb=1' does not wait for 'gradients:b1:1' alone"));
}

/// The plan of an example with divided parameters.
std::string divided_parameters_text() {
  const Result<Plan> plan = parse_plan(testing::kPlanText, "m.plan");
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  return print_plan(testing::sharded(*plan, {2, 1}, StateLevel::kParameters));
}

std::string message_of_gathers(std::string_view from, std::string_view to) {
  return message_of(divided_parameters_text(), from, to);
}

TEST(ShardedBuckets, RanksMayDivideParameters) {
  const std::string text = divided_parameters_text();
  const Result<Plan> plan = parse_plan(text, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), text);
  EXPECT_EQ(plan->buckets[1].state, StateLevel::kParameters);
  EXPECT_EQ(text.find("all_gather"), std::string::npos);
}

TEST(ShardedBuckets, EachPassGathersDividedParametersOnce) {
  using ::testing::HasSubstr;
  EXPECT_THAT(message_of_gathers("  gather_forward b1 mb=0\n", ""),
              HasSubstr("program s0: 'gather_forward b1 mb=0' is missing"));
  EXPECT_THAT(message_of_gathers("gather_backward b1 mb=0", "gather_forward b1 mb=0"),
              HasSubstr("'gather_forward b1 mb=0' appears twice"));
  EXPECT_THAT(message_of_gathers("  gather_forward b1 mb=0\n",
                                 "  gather_forward b1 mb=0 after=in_forward:b1:0\n"),
              HasSubstr("'gather_forward b1 mb=0' waits for 'in_forward:b1:0', which is not listed "
                        "before it"));
  EXPECT_THAT(message_of_gathers("after=in_forward:b1:0", "after=forward:0"),
              HasSubstr("does not wait for 'in_forward:b1:0' alone"));
  EXPECT_THAT(message_of_gathers("  gather_forward b1 mb=0\n  forward mb=0\n",
                                 "  forward mb=0\n  gather_forward b1 mb=0\n"),
              HasSubstr("'gather_forward b1 mb=0' comes after 'forward mb=0'"));
}

TEST(ShardedBuckets, ABucketThatStagesShareDividesNoGradients) {
  EXPECT_EQ(message_of_divided("bucket b1 stage=s0 algorithm=ring type=fp32 state=gradients "
                               "parts=96,48",
                               "bucket b1 stage=s0 shared-with=s1 algorithm=ring type=fp32 "
                               "state=gradients parts=96,24x2"),
            "m.plan: error: bucket b1 of stages s0 and s1 divides its gradients\n"
            "  hint: stages that share a bucket sum it once, after their last backward passes: "
            "state=optimizer, or no state=");
}

TEST(ShardedBuckets, AShardedBucketIsScatteredThenUpdatedThenGathered) {
  EXPECT_EQ(message_of_sharded("  all_gather b1 after=update\n", ""),
            "m.plan: error: program s0: 'all_gather b1' is missing\n"
            "  hint: stage s0 has 2 micro-batches, sends c0, reduces b1");
  EXPECT_THAT(message_of_sharded("  all_gather b1 after=update\n", "  all_gather b1\n"),
              ::testing::HasSubstr("'all_gather b1' may start before 'update' has finished"));
  EXPECT_THAT(message_of_sharded("  update after=reduce_scatter:b1\n", "  update\n"),
              ::testing::HasSubstr("'update' may start before 'reduce_scatter b1' has finished"));
  EXPECT_THAT(
      message_of_sharded("  reduce_scatter b1 after=gradients:b1:1\n", "  reduce_scatter b1\n"),
      ::testing::HasSubstr("may start before its last gradient is there"));
  EXPECT_THAT(message_with("  all_reduce b1 after=gradients:b1:1\n  update after=all_reduce:b1\n",
                           "  reduce_scatter b1 after=gradients:b1:1\n"
                           "  update after=reduce_scatter:b1\n  all_gather b1 after=update\n"),
              ::testing::HasSubstr("'reduce_scatter b1' is not an instruction of this stage"));
}

/// The small plan; both stages read `table` as well, whose bucket they share. `line`: its bucket's.
std::string shared_plan_text(const std::string& line =
                                 "bucket b2 stage=s0 shared-with=s1 "
                                 "algorithm=tree type=fp32") {
  std::string text(kPlanText);
  const auto insert = [&](std::string_view before, const std::string& lines) {
    text.insert(text.find(before), lines);
  };
  insert("program s0\n", line + " gradients=1 elements=32\n  gradient table elements=32\n");
  insert("  update after=all_reduce:b1\n", "  all_reduce b2 after=gradients:b2:1\n");
  text.replace(text.find("update after=all_reduce:b1"), 26, "update after=all_reduce:b2");
  insert("  update\n", "  all_reduce b2 after=gradients:b2:1\n");
  text.replace(text.find("  update\n"), 9, "  update after=all_reduce:b2\n");
  return text;
}

TEST(SharedBuckets, AreSummedOverTheRanksOfAllTheirStages) {
  const Result<Plan> plan = parse_plan(shared_plan_text(), "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), shared_plan_text());
  const PlanBucket& shared = plan->buckets[2];
  EXPECT_EQ(stages_of(shared), (std::vector{0, 1}));
  EXPECT_EQ(ranks_of(*plan, shared), (std::vector{0, 1, 2}));
  EXPECT_EQ(ranks_of(*plan, plan->buckets[1]), (std::vector{0, 1}));
  EXPECT_TRUE(is_reduced(*plan, shared));
  EXPECT_FALSE(is_reduced(*plan, plan->buckets[0])) << "stage s1 has one rank";
}

TEST(SharedBuckets, HaveAGroupForEachSetOfStages) {
  Plan plan = *parse_plan(shared_plan_text(), "m.plan");
  plan.buckets.push_back(plan.buckets[2]);
  EXPECT_EQ(group_of(plan, plan.buckets[0]), 1);
  EXPECT_EQ(group_of(plan, plan.buckets[1]), 0);
  EXPECT_EQ(group_of(plan, plan.buckets[2]), world_group(plan) + 1);
  EXPECT_EQ(group_of(plan, plan.buckets[3]), world_group(plan) + 1);
  EXPECT_EQ(group_count(plan), world_group(plan) + 2);
  plan.buckets.push_back(plan.buckets[2]);
  plan.buckets.back().shared_with = {1, 2};
  EXPECT_EQ(group_of(plan, plan.buckets[4]), world_group(plan) + 2);
  EXPECT_EQ(group_count(plan), world_group(plan) + 3);
}

TEST(SharedBuckets, NameOtherStagesThatHaveOperatorsInOrder) {
  EXPECT_EQ(
      message_of(shared_plan_text("bucket b2 stage=s0 shared-with=s0 algorithm=tree type=fp32")),
      "m.plan: error: bucket b2: stage s0 comes after stage s0\n"
      "  hint: the stages that share a bucket ascend, from stage= on");
  EXPECT_EQ(
      message_of(shared_plan_text("bucket b2 stage=s0 shared-with=s1,s2 algorithm=tree type=fp32")),
      "m.plan: error: bucket b2 is shared with stage s2, which has no operators\n"
      "  hint: the plan has 2 stages");
  EXPECT_EQ(
      message_of(shared_plan_text("bucket b2 stage=s0 shared-with=1 algorithm=tree type=fp32")),
      "m.plan:21:20: error: shared-with is '1', not names such as s1,s2\n"
      "    bucket b2 stage=s0 shared-with=1 algorithm=tree type=fp32 gradients=1 elements=32\n"
      "                       ^~~~~~~~~~~~~");
}

TEST(ShardedBuckets, BackwardPassesThatArePartedDivideNoGradients) {
  EXPECT_THAT(
      message_of_divided("schedule=1f1b", "schedule=zero-bubble"),
      ::testing::HasSubstr("bucket b1 has state=gradients, but the schedule is zero-bubble\n"
                           "  hint: gradients are divided by backward passes that are not parted"));
  EXPECT_THAT(
      message_of_gathers("schedule=1f1b", "schedule=zero-bubble"),
      ::testing::HasSubstr("bucket b1 has state=parameters, but the schedule is zero-bubble\n"));
}

TEST(SharedBuckets, HaveNoFlow) {
  Plan plan = *parse_plan(shared_plan_text(), "m.plan");
  PlanFlow flow;
  flow.name = "f0";
  flow.steps = {{false, {{0, 1, 1}, {1, 0, 0}}, {}}, {true, {{0, 1, 0}, {1, 0, 1}}, {}}};
  plan.flows.push_back(flow);
  plan.buckets[2].algorithm = AllReduce::kFlow;
  plan.buckets[2].flow = 0;
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: bucket b2 of stages s0 and s1 names a flow\n"
            "  hint: a flow is among the ranks of one stage; stages that share a bucket sum it by "
            "ring, hierarchical or tree");
}

TEST(SharedBuckets, AreReducedByTheProgramsOfAllTheirStages) {
  Plan plan = *parse_plan(shared_plan_text(), "m.plan");
  std::vector<Instruction>& last = plan.programs[1].instructions;
  ASSERT_EQ(name_of(last[8].id), "all_reduce:b2");
  last.erase(last.begin() + 8);
  last[8].after.clear();
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: program s1: 'all_reduce b2' is missing\n"
            "  hint: stage s1 has 2 micro-batches, receives c0, reduces b2");
}

TEST(SharedBuckets, AreReducedInOneOrder) {
  Plan plan = *parse_plan(shared_plan_text(), "m.plan");
  plan.buckets.push_back(plan.buckets[2]);
  plan.buckets[3].name = "b3";
  plan.buckets[3].members = {{"other table", 8}};
  for (Program& program : plan.programs) {
    auto at = program.instructions.end() - 2;  // the update
    at->after = {{Opcode::kAllReduce, 3, -1}};
    program.instructions.insert(
        at, Instruction{{Opcode::kAllReduce, 3, -1}, {{Opcode::kGradients, 3, 1}}});
  }
  EXPECT_EQ(verify_plan(plan).message(), "");
  std::vector<Instruction>& last = plan.programs[1].instructions;
  std::swap(last[8], last[9]);
  last[10].after = {{Opcode::kAllReduce, 2, -1}};
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: the ranks would wait for each other forever: 'all_reduce b3' waits for "
            "'all_reduce b2', which waits for 'all_reduce b3'\n"
            "  hint: receives and sends of both stages, and all-reduces that they share, must come "
            "in one order");
}

}  // namespace
}  // namespace agpcs
