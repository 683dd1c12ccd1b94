// SPDX-License-Identifier: Apache-2.0
// Plans whose optimizer clips gradients by their norm.
#include "tests/ir/plan/text.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

using testing::plan_with_idle_rank;

/// The small plan with a norm of at most 1.5, and `from` replaced.
std::string text_with(std::string_view from = "", std::string_view to = "") {
  std::string text(testing::kPlanText);
  const auto replace = [&](std::string_view first, std::string_view then) {
    const std::size_t at = text.find(first);
    ASSERT_NE(at, std::string::npos) << first;
    text.replace(at, first.size(), then);
  };
  replace("weight-decay=0\n", "weight-decay=0 max-norm=1.5\n");
  replace("  update after=all_reduce:b1\n",
          "  norm after=all_reduce:b1,backward:1\n  update after=norm\n");
  replace("  update\n", "  norm after=backward:1\n  update after=norm\n");
  replace(from, to);
  return text;
}

std::string message_with(std::string_view from, std::string_view to) {
  const Result<Plan> plan = parse_plan(text_with(from, to), "m.plan");
  return plan.ok() ? "accepted" : plan.status().message();
}

TEST(VerifyNorm, APlanReadsBackAsItIs) {
  const Result<Plan> plan = parse_plan(text_with(), "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->training.optimizer.max_norm, 1.5);
  EXPECT_EQ(print_plan(*plan), text_with());
}

TEST(VerifyNorm, IsPositive) {
  EXPECT_EQ(message_with("max-norm=1.5", "max-norm=-1"),
            "m.plan: error: optimizer's max-norm is -1, not in [0, inf)");
}

TEST(VerifyNorm, IsThereIfAndOnlyIfTheOptimizerClips) {
  EXPECT_EQ(message_with("  norm after=backward:1\n  update after=norm\n", "  update\n"),
            "m.plan: error: program s1: 'norm' is missing\n"
            "  hint: stage s1 has 2 micro-batches, receives c0, takes part in 'norm', reduces "
            "nothing (it has one rank)");
  EXPECT_THAT(message_with(" max-norm=1.5", ""),
              ::testing::HasSubstr("program s0: 'norm' is not an instruction of this stage"));
}

TEST(VerifyNorm, WaitsForAllGradientsAndTheUpdateForIt) {
  EXPECT_EQ(message_with("norm after=all_reduce:b1,backward:1", "norm after=all_reduce:b1"),
            "m.plan:31:3: error: program s0: 'norm' may start before 'backward mb=1' has finished\n"
            "    norm after=all_reduce:b1\n"
            "    ^~~~~~~~~~~~~~~~~~~~~~~~\n"
            "  hint: add 'backward:1' to its after=");
  EXPECT_EQ(message_with("  norm after=backward:1\n  update after=norm\n",
                         "  norm after=backward:1\n  update\n"),
            "m.plan:44:3: error: program s1: 'update' may start before 'norm' has finished\n"
            "    update\n"
            "    ^~~~~~\n"
            "  hint: add 'norm' to its after=");
}

TEST(VerifyNorm, RanksWithoutWorkTakePart) {
  Plan plan = plan_with_idle_rank();
  const Plan clips = *parse_plan(text_with(), "m.plan");
  plan.training = clips.training;
  std::copy(clips.programs.begin(), clips.programs.end(), plan.programs.begin());
  EXPECT_THAT(verify_plan(plan).message(),
              ::testing::HasSubstr("program s2: 'norm' is missing\n  hint: stage s2 has no "
                                   "operators, only 'norm' and 'report'"));
  auto& idle = plan.programs.back().instructions;
  idle.insert(idle.begin(), Instruction{{Opcode::kNorm, -1, -1}, {}});
  EXPECT_EQ(verify_plan(plan).message(), "");
}

}  // namespace
}  // namespace agpcs
