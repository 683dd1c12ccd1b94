// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/plan_against.h"
#include "ir/strategy/state_parts.h"
#include "tests/codegen/test_models.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace agpcs::testing;
using ::testing::HasSubstr;

/// One stage of two replicas; operators read three buckets, of which the second has two parameters.
Plan divided() {
  const auto& known = strategies();
  const auto found = std::find_if(known.begin(), known.end(), [](const auto& one) {
    return one.first == "divided parameters";
  });
  return plan_of_strategy(found->second);
}

TEST(DividedParameters, AreGatheredOneBucketAhead) {
  const Plan plan = divided();
  EXPECT_EQ(verify_plan(plan).message(), "");
  const std::string text = print_plan(plan);
  const std::size_t begin = text.find("program s0\n");
  EXPECT_EQ(text.substr(begin, text.find("expect\n") - begin),
            "program s0\n"
            "  gather_forward b2 mb=0\n"
            "  forward mb=0\n"
            "  gather_forward b1 mb=0 after=in_forward:b2:0\n"
            "  gather_forward b0 mb=0 after=in_forward:b1:0\n"
            "  gather_backward b0 mb=0 after=in_forward:b0:0\n"
            "  backward mb=0\n"
            "  gather_backward b1 mb=0 after=in_backward:b0:0\n"
            "  reduce_scatter b0 mb=0 after=gradients:b0:0\n"
            "  gather_backward b2 mb=0 after=in_backward:b1:0\n"
            "  reduce_scatter b1 mb=0 after=gradients:b1:0\n"
            "  gather_forward b2 mb=1 after=in_backward:b2:0\n"
            "  reduce_scatter b2 mb=0 after=gradients:b2:0\n"
            "  forward mb=1\n"
            "  gather_forward b1 mb=1 after=in_forward:b2:1\n"
            "  gather_forward b0 mb=1 after=in_forward:b1:1\n"
            "  gather_backward b0 mb=1 after=in_forward:b0:1\n"
            "  backward mb=1\n"
            "  gather_backward b1 mb=1 after=in_backward:b0:1\n"
            "  reduce_scatter b0 mb=1 after=gradients:b0:1\n"
            "  gather_backward b2 mb=1 after=in_backward:b1:1\n"
            "  reduce_scatter b1 mb=1 after=gradients:b1:1\n"
            "  reduce_scatter b2 mb=1 after=gradients:b2:1\n"
            "  update after=reduce_scatter:b2:1\n"
            "  report after=backward:1\n");
}

/// A pass that waits for a gather behind a sum which it has not made yet would wait forever.
TEST(DividedParameters, GathersAndSumsComeInTheOrderInWhichPassesComeToThem) {
  const Graph graph = skip_model();
  Plan plan = divided();
  const auto why = [&] { return verify_plan_against(plan, graph, two_hosts()).message(); };
  EXPECT_EQ(why(), "");
  std::vector<Instruction>& program = plan.programs[0].instructions;
  const auto at = [&](const InstructionId& id) {
    return std::find_if(program.begin(), program.end(),
                        [&](const Instruction& one) { return one.id == id; });
  };
  const Plan good = plan;
  std::iter_swap(at({Opcode::kGatherBackward, 2, 0}), at({Opcode::kReduceScatter, 1, 0}));
  EXPECT_THAT(why(), HasSubstr("program s0: 'reduce_scatter b1 mb=0' comes where 'gather_backward "
                               "b2 mb=0' has to"));
  plan = good;
  at({Opcode::kGatherBackward, 1, 0})->after.clear();
  EXPECT_THAT(why(), HasSubstr("'gather_backward b1 mb=0' does not wait for 'in_backward:b0:0' "
                               "alone"));
  plan = good;
  program.erase(at({Opcode::kGatherForward, 1, 1}));
  EXPECT_THAT(why(), HasSubstr("'gather_forward b1 mb=1' is missing"));
}

TEST(DividedParameters, PassesHoldWhatTheyReadAndOneBucketAhead) {
  const auto bucket = [](std::int64_t bytes, OpId first, OpId last, OpId needed) {
    FilledBucket made;
    made.add(first, first, last, bytes, 0);
    made.last_bytes = bytes;  // no gradient waits
    made.gathered = true;
    made.needed = needed;
    return made;
  };
  const auto gathered = [](const std::vector<FilledBucket>& buckets) {
    const HeldInPasses held = held_in_passes(buckets, backward_uses(buckets));
    HeldWalk forward(held.at_forward, held.forward), backward(held.at_backward, held.backward);
    std::int64_t most = 0;
    for (OpId op = 1; op < 10; ++op) {
      most = std::max({most, forward.begin(op), backward.begin(10 - op)});
      forward.end(op);
      backward.end(10 - op);
    }
    EXPECT_EQ(forward.held(), held.ahead);
    return most;
  };
  EXPECT_EQ(gathered({bucket(1, 9, 8, 9), bucket(10, 7, 6, 7), bucket(4, 5, 5, 5)}), 10 + 4);
  // The end of a pass reads the first bucket, and the next pass begins with it.
  EXPECT_EQ(gathered({bucket(20, 9, 8, 9), bucket(10, 7, 6, 7)}), 20 + 20);
  // Both ends of the stage read the last one.
  const std::vector<FilledBucket> tied = {bucket(1, 9, 8, 9), bucket(2, 7, 6, 7),
                                          bucket(4, 9, 5, 9)};
  EXPECT_EQ(backward_uses(tied), (std::vector<BucketUse>{{0, 0}, {2, 0}, {1, 1}}));
  EXPECT_EQ(gathered(tied), 4 + 2 + 4);
  // A segment that is computed again needs all of its buckets at once.
  const std::vector<FilledBucket> segment = {bucket(1, 9, 8, 9), bucket(2, 7, 6, 7),
                                             bucket(4, 5, 4, 7)};
  EXPECT_EQ(backward_uses(segment), (std::vector<BucketUse>{{0, 0}, {1, 1}, {2, 1}}));
  EXPECT_EQ(gathered(segment), 4 + 2 + 4);
  const std::vector<OpId> ops = {3, 4, 6, 7, 8};
  const std::vector<std::size_t> ends = {2, 4};
  EXPECT_EQ(needed_before(3, ops, ends), 4);
  EXPECT_EQ(needed_before(6, ops, ends), 7);
  EXPECT_EQ(needed_before(8, ops, ends), 8);
}

}  // namespace
}  // namespace agpcs
