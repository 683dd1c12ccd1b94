// SPDX-License-Identifier: Apache-2.0
#include "tests/ir/plan/text.h"

#include <agpcs/plan.h>

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

using testing::kPlanText;

/// The small plan, whose stage s0 has three operators, with `recompute` for its "recompute=no".
std::string message_with(std::string_view recompute) {
  const std::string text = testing::plan_text_with("recompute=no", recompute);
  const Result<Plan> plan = parse_plan(text, "m.plan");
  return plan.ok() ? "accepted" : plan.status().message();
}

TEST(Segments, AreReadAndPrinted) {
  for (const std::string_view recompute :
       {"recompute=yes", "recompute=yes segments=1", "recompute=yes segments=2,1",
        "recompute=yes segments=1x3"}) {
    const std::string text = testing::plan_text_with("recompute=no", recompute);
    const Result<Plan> plan = parse_plan(text, "m.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(print_plan(*plan), text);
  }
  const Plan plan =
      *parse_plan(testing::plan_text_with("recompute=no", "recompute=yes segments=2,1"), "m.plan");
  EXPECT_EQ(plan.stages[0].segments, (std::vector<std::int64_t>{2, 1}));
}

TEST(Segments, AreOfStagesThatRecompute) {
  EXPECT_EQ(message_with("recompute=no segments=1"),
            "m.plan: error: stage s0 has segments, but recompute=no\n"
            "  hint: segments are recomputed, or have activations in hosts: recompute=yes, "
            "activations-in=host, or no segments=");
}

TEST(Segments, HaveOperatorsOfTheStage) {
  EXPECT_EQ(message_with("recompute=yes segments=2,2"),
            "m.plan: error: stage s0: segments have 2x2 operators, the stage has 3\n"
            "  hint: each segment has an operator, and all have no more than the stage");
  EXPECT_EQ(message_with("recompute=yes segments=2,0"),
            "m.plan: error: stage s0: segments have 2,0 operators, the stage has 3\n"
            "  hint: each segment has an operator, and all have no more than the stage");
}

TEST(Segments, OfAWholeStageHaveOneText) {
  EXPECT_EQ(message_with("recompute=yes segments=3"),
            "m.plan: error: stage s0 has one segment of all its operators\n"
            "  hint: that is recompute=yes without segments=");
}

TEST(StateInTheHost, IsReadAndPrinted) {
  for (const std::string_view place :
       {"recompute=no state-in=host", "recompute=yes segments=2,1 state-in=host"}) {
    const std::string text = testing::plan_text_with("recompute=no", place);
    const Result<Plan> plan = parse_plan(text, "m.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->stages[0].state_in_host);
    EXPECT_FALSE(plan->stages[1].state_in_host);
    EXPECT_EQ(print_plan(*plan), text);
  }
}

TEST(StateInTheHost, IsSaidInOneWay) {
  EXPECT_EQ(message_with("recompute=no state-in=device"),
            "m.plan:8:59: error: state-in is 'device'\n"
            "    stage s0 ranks=0-1 devices=a/0-1 samples=3,1 recompute=no state-in=device "
            "operators=3\n"
            "                                                              ^~~~~~~~~~~~~~~\n"
            "  hint: state-in=host, or no state-in= where devices keep the optimizer's state");
}

TEST(StateInTheHost, IsOfOptimizersThatRememberSomething) {
  std::string text = testing::plan_text_with("recompute=no", "recompute=no state-in=host");
  const std::size_t at = text.find("momentum=");
  text.replace(at, text.find(' ', at) - at, "momentum=0");
  const Result<Plan> plan = parse_plan(text, "m.plan");
  EXPECT_EQ(plan.ok() ? "accepted" : plan.status().message(),
            "m.plan: error: stage s0 has state-in=host, but the optimizer remembers nothing\n"
            "  hint: leave out state-in=");
}

TEST(ActivationsInTheHost, AreReadAndPrinted) {
  for (const std::string_view place :
       {"recompute=no activations-in=host", "recompute=no segments=2 activations-in=host",
        "recompute=yes segments=2,1 activations-in=host state-in=host"}) {
    const std::string text = testing::plan_text_with("recompute=no", place);
    const Result<Plan> plan = parse_plan(text, "m.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->stages[0].activations_in_host);
    EXPECT_FALSE(plan->stages[1].activations_in_host);
    EXPECT_EQ(print_plan(*plan), text);
  }
}

TEST(ActivationsInTheHost, AreSaidInOneWay) {
  EXPECT_EQ(message_with("recompute=no activations-in=device"),
            "m.plan:8:59: error: activations-in is 'device'\n"
            "    stage s0 ranks=0-1 devices=a/0-1 samples=3,1 recompute=no activations-in=device "
            "operators=3\n"
            "                                                              "
            "^~~~~~~~~~~~~~~~~~~~~\n"
            "  hint: activations-in=host, or no activations-in= where devices keep activations");
  EXPECT_EQ(message_with("recompute=no segments=3 activations-in=host"),
            "m.plan: error: stage s0 has one segment of all its operators\n"
            "  hint: that is activations-in=host without segments=");
}

}  // namespace
}  // namespace agpcs
