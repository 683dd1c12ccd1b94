// SPDX-License-Identifier: Apache-2.0
// Flows in plans: their text, and the proof that they sum.
#include "ir/plan/flow.h"

#include "tests/ir/plan/text.h"
#include "tests/support/plan_flows.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using testing::plan_text_with;

std::string message_of(const Status& status) { return status.ok() ? "ok" : status.message(); }

// kPlanText with its bucket b1 reduced along a flow over the two ranks of s0.
const std::string kFlowText = R"(flow f0 stage=s0 sub-chunks=2 steps=2 messages=8
  add 0>1:1.0,1.1 1>0:0.0,0.1
  copy 0>1:0.0,0.1 1>0:1.0,1.1
)";
std::string flow_plan(const std::string& flow = kFlowText) {
  std::string text =
      plan_text_with("bucket b1 stage=s0 algorithm=ring", "bucket b1 stage=s0 algorithm=flow:f0");
  return text.insert(text.find("bucket b0"), flow);
}
std::string flow_plan_with(std::string_view from, std::string_view to) {
  std::string text = flow_plan();
  return text.replace(text.find(from), from.size(), to);
}
std::string message_of(const std::string& text) {
  return message_of(parse_plan(text, "m.plan").status());
}

TEST(PlanFlow, PrintsBackAsItWasRead) {
  const Result<Plan> plan = parse_plan(flow_plan(), "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), flow_plan());
  ASSERT_EQ(plan->flows.size(), 1u);
  EXPECT_EQ(plan->flows[0], testing::ring_flow(2, 2));
  EXPECT_EQ(plan->buckets[1].flow, 0);
  EXPECT_EQ(algorithm_text(*plan, plan->buckets[1]), "flow:f0");
}

TEST(PlanFlow, AnOrderAndItsWaitsPrintBackAsTheyWereRead) {
  std::string text = flow_plan_with("sub-chunks=2", "sub-chunks=2 order=rounds");
  const std::string line = "  copy ";
  text.insert(text.find(line) + line.size(), "after=0>1,1>0 ");
  const Result<Plan> plan = parse_plan(text, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), text);
  EXPECT_EQ(plan->flows[0].order, FlowOrder::kRounds);
  EXPECT_EQ(plan->flows[0].steps[1].after, (std::vector<FlowWait>{{0, 1}, {1, 0}}));
  PlanFlow other = plan->flows[0];
  EXPECT_EQ(other, plan->flows[0]);
  other.steps[1].after.pop_back();
  EXPECT_FALSE(other == plan->flows[0]);
  other = plan->flows[0];
  other.order = FlowOrder::kReceivers;
  EXPECT_FALSE(other == plan->flows[0]);
}

TEST(PlanFlow, TheOrderThatIsMeantAnywayIsNotSaid) {
  EXPECT_THAT(message_of(flow_plan_with("sub-chunks=2", "sub-chunks=2 order=receivers")),
              HasSubstr("hint: write 'flow f0 stage=s0 sub-chunks=2 steps=2 messages=8'"));
}

TEST(PlanFlow, WhatAnOrderSaysWrongIsNamed) {
  EXPECT_THAT(message_of(flow_plan_with("sub-chunks=2", "sub-chunks=2 order=round")),
              HasSubstr("unknown order 'round'\n"));
  EXPECT_THAT(message_of(flow_plan_with("sub-chunks=2", "sub-chunks=2 order=round")),
              HasSubstr("did you mean 'rounds'? orders: receivers, rounds"));
  EXPECT_THAT(message_of(flow_plan_with("copy", "copy after=0>2")),
              HasSubstr("'2' in '0>2' is no rank of stage s0\n"));
  EXPECT_THAT(message_of(flow_plan_with("copy", "copy after=01")),
              HasSubstr("'01' is no wait such as 9>1\n"));
  EXPECT_THAT(message_of(flow_plan_with("copy", "copy after=0>1")),
              HasSubstr("flow f0 step 2 has waits; its order is receivers, only that of rounds has "
                        "them"));
}

TEST(PlanFlow, ARoundHasBothPhasesWhereTheSecondNeedsNothingOfTheFirst) {
  PlanFlow flow = testing::ring_flow(3);
  EXPECT_EQ(rounds_of(flow), (std::vector<int>{0, 1, 2, 3}));
  std::swap(flow.steps[1], flow.steps[2]);  // rounds_of asks for no more than it says
  flow.steps[1].messages = {{0, 1, 2}};     // came to member 0 in no step
  EXPECT_EQ(rounds_of(flow), (std::vector<int>{0, 0, 1, 1}));
  flow.steps[1].after = {{2, 0}};
  EXPECT_EQ(rounds_of(flow), (std::vector<int>{0, 1, 2, 2}));
  flow.steps[1].after.clear();
  flow.steps[1].messages = {{flow.steps[0].messages[0].to, 0, flow.steps[0].messages[0].chunk}};
  EXPECT_EQ(rounds_of(flow), (std::vector<int>{0, 1, 2, 2}));
}

TEST(PlanFlow, NamesRanksNotPositions) {
  const PlanFlow star = testing::star_flow(3);
  EXPECT_EQ(print_flow_step(star.steps[0], 1, {4, 7, 9}), "  add 4>7:7 7>9:9 9>4:4");
  EXPECT_EQ(print_flow_step(star.steps[2], 1, {4, 7, 9}), "  copy 4>7:4 7>9:7 9>4:9");
}

TEST(PlanFlow, WhatItsLinesSayWrongIsNamed) {
  EXPECT_THAT(message_of(flow_plan_with("0>1:1.0", "0>2:1.0")),
              HasSubstr("'2' in '0>2:1.0,1.1' is no rank of stage s0\n"));
  EXPECT_THAT(message_of(flow_plan_with("0>1:1.0", "0>1:1.2")),
              HasSubstr("'1.2' in '0>1:1.2,1.1' is no chunk\n"));
  EXPECT_THAT(message_of(flow_plan_with("0>1:1.0", "0>1:1")), HasSubstr("is no chunk"));
  EXPECT_THAT(message_of(flow_plan_with("0>1:1.0", "01:1.0")), HasSubstr("is no message such as"));
  EXPECT_THAT(message_of(flow_plan_with("  copy", "  cpoy")), HasSubstr("unknown phase 'cpoy'"));
  EXPECT_THAT(message_of(flow_plan_with("steps=2", "steps=3")),
              HasSubstr("steps=3, but its lines have 2"));
  EXPECT_THAT(message_of(flow_plan_with("messages=8", "messages=7")),
              HasSubstr("messages=7, but its lines have 8"));
  EXPECT_THAT(message_of(flow_plan_with("sub-chunks=2", "sub-chunks=0")),
              HasSubstr("sub-chunks is 0, not 1 to 1024"));
  EXPECT_THAT(message_of(flow_plan_with("flow f0 stage=s0", "flow f0 stage=s5")),
              HasSubstr("stage s5 of 2 stages"));
  EXPECT_THAT(message_of(flow_plan_with("1>0:0.0,0.1", "1>0:0.1,0.0")), HasSubstr("out of order"));
  EXPECT_THAT(message_of(flow_plan_with("algorithm=flow:f0", "algorithm=flow:f1")),
              HasSubstr("bucket b1 has algorithm flow and flow f1, of 1 flows"));
  EXPECT_THAT(message_of(flow_plan_with("algorithm=flow:f0", "algorithm=flow")),
              HasSubstr("unknown algorithm 'flow'"));
}

TEST(PlanFlow, AFlowOfNoUseIsRefused) {
  EXPECT_THAT(message_of(flow_plan_with("algorithm=flow:f0", "algorithm=ring")),
              HasSubstr("flow f0 serves no bucket"));
}

TEST(PlanFlow, AFlowOfAnotherStageIsRefused) {
  std::string text = flow_plan();
  const std::string from = "bucket b0 stage=s1 algorithm=ring";
  text.replace(text.find(from), from.size(), "bucket b0 stage=s1 algorithm=flow:f0");
  EXPECT_THAT(message_of(text), HasSubstr("bucket b0 of stage s1 names flow f0 of stage s0"));
}

TEST(VerifyFlow, AcceptsRingsStarsAndRandomTrees) {
  for (int members = 2; members < 8; ++members) {
    for (int sub_chunks = 1; sub_chunks < 4; ++sub_chunks) {
      EXPECT_EQ(message_of(verify_flow(testing::ring_flow(members, sub_chunks), members)), "ok");
      const PlanFlow random = testing::random_flow(members, sub_chunks, Rng(3));
      EXPECT_EQ(message_of(verify_flow(random, members)), "ok");
      EXPECT_TRUE(testing::flow_sums(random, members));
    }
    EXPECT_EQ(message_of(verify_flow(testing::star_flow(members), members)), "ok");
    EXPECT_TRUE(testing::flow_sums(testing::ring_flow(members), members));
    EXPECT_TRUE(testing::flow_sums(testing::star_flow(members), members));
  }
}

TEST(VerifyFlow, SaysWhichStepIsWrong) {
  PlanFlow flow = testing::ring_flow(3);
  flow.steps[2].messages[0].chunk = 1;
  EXPECT_EQ(message_of(verify_flow(flow, 3)),
            "flow f0 step 3: sub-chunk 0 of member 1's chunk from member 0 to member 1: gathered "
            "before the sender has the sum");
  flow = testing::ring_flow(3);
  flow.steps.pop_back();
  EXPECT_EQ(message_of(verify_flow(flow, 3)),
            "flow f0 never gathers sub-chunk 0 of member 0's chunk to member 2");
  EXPECT_EQ(message_of(verify_flow(testing::ring_flow(3), 4)),
            "flow f0 never reduces sub-chunk 0 of member 0's chunk from member 3");
}

TEST(VerifyFlow, SaysWhichWaitIsWrong) {
  const auto message_with = [](std::size_t step, std::vector<FlowWait> waits) {
    PlanFlow flow = testing::ring_flow(3);
    flow.order = FlowOrder::kRounds;
    flow.steps[step].after = std::move(waits);
    return message_of(verify_flow(flow, 3));
  };
  EXPECT_EQ(message_with(1, {{0, 1}, {0, 2}, {1, 0}}), "ok");
  EXPECT_EQ(message_with(0, {{0, 1}}), "flow f0 step 1 has waits, and nothing is before it");
  EXPECT_EQ(message_with(1, {{0, 3}}), "flow f0 step 2: member 3 waits for member 0 of 3");
  EXPECT_EQ(message_with(1, {{1, 1}}), "flow f0 step 2: member 1 waits for member 1 of 3");
  EXPECT_EQ(message_with(1, {{1, 0}, {0, 1}}),
            "flow f0 step 2: member 1 waits for member 0: out of order: waits are sorted by who is "
            "waited for and who waits");
  EXPECT_THAT(message_with(1, {{0, 1}, {0, 1}}), HasSubstr("out of order"));
}

TEST(VerifyFlow, RefusesAFarTooShortFlowBeforeItTakesMemory) {
  PlanFlow flow = testing::ring_flow(2);
  flow.sub_chunks = 1024;
  EXPECT_THAT(message_of(verify_flow(flow, 1 << 20)),
              HasSubstr("has 4 messages; 1048576 members with 1024 sub-chunks each need"));
}

/// Another flow that differs in one message, or in the order of two steps.
PlanFlow mutated(PlanFlow flow, int members, Rng& rng) {
  const std::size_t s = rng.below(flow.steps.size());
  std::vector<FlowMessage>& messages = flow.steps[s].messages;
  const std::size_t m = rng.below(messages.size());
  const auto any = [&](int below) {
    return static_cast<int>(rng.below(static_cast<std::uint64_t>(below)));
  };
  switch (rng.below(7)) {
    case 0:
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(m));
      break;
    case 1: {
      FlowMessage copy = messages[m];
      flow.steps[rng.below(flow.steps.size())].messages.push_back(copy);
      break;
    }
    case 2:
      messages[m].from = any(members);
      break;
    case 3:
      messages[m].to = any(members);
      break;
    case 4:
      messages[m].chunk = any(members * flow.sub_chunks);
      break;
    case 5:
      std::swap(flow.steps[s], flow.steps[rng.below(flow.steps.size())]);
      break;
    default:
      flow.steps[s].gathers = !flow.steps[s].gathers;
  }
  for (FlowStep& step : flow.steps) {
    std::sort(step.messages.begin(), step.messages.end(), [](const auto& a, const auto& b) {
      return std::tie(a.from, a.to, a.chunk) < std::tie(b.from, b.to, b.chunk);
    });
  }
  return flow;
}

TEST(VerifyFlow, ACorruptedFlowIsRefusedOrSumsAllTheSame) {
  Rng rng(11);
  int refused = 0, tries = 0;
  for (int members = 2; members < 7; ++members) {
    for (const PlanFlow& flow : {testing::ring_flow(members, 2), testing::star_flow(members),
                                 testing::random_flow(members, 2, rng.fork("flow"))}) {
      for (int i = 0; i < 400; ++i) {
        const PlanFlow other = mutated(flow, members, rng);
        if (other == flow) continue;
        ++tries;
        const bool accepted = verify_flow(other, members).ok();
        if (!accepted) ++refused;
        if (accepted) {
          EXPECT_TRUE(testing::flow_sums(other, members));
        }
      }
    }
  }
  EXPECT_GT(refused, tries * 4 / 5);
}

TEST(VerifyFlow, AMessageTooFewOrTwiceIsAlwaysRefused) {
  for (const PlanFlow& flow : {testing::ring_flow(4, 2), testing::star_flow(5)}) {
    const int members = flow.steps[0].messages.size() % 5 == 0 ? 5 : 4;
    ASSERT_TRUE(verify_flow(flow, members).ok());
    for (std::size_t s = 0; s < flow.steps.size(); ++s) {
      for (std::size_t m = 0; m < flow.steps[s].messages.size(); ++m) {
        PlanFlow less = flow;
        auto& messages = less.steps[s].messages;
        messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(m));
        EXPECT_FALSE(verify_flow(less, members).ok()) << s << " " << m;
        PlanFlow more = flow;
        more.steps.push_back({flow.steps[s].gathers, {flow.steps[s].messages[m]}, {}});
        EXPECT_FALSE(verify_flow(more, members).ok()) << s << " " << m;
      }
    }
  }
}

TEST(PartOf, CutsEvenlyAndCompletely) {
  for (const std::int64_t elements : {0, 1, 5, 12, 13}) {
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < 6; ++i) {
      const ElementRange range = part_of(elements, 6, i);
      EXPECT_EQ(range.begin, end);
      EXPECT_TRUE(range.size() == elements / 6 || range.size() == elements / 6 + 1);
      end = range.end;
    }
    EXPECT_EQ(end, elements);
  }
}

}  // namespace
}  // namespace agpcs
