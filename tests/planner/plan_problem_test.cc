// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_problem.h"

#include "ir/memory.h"
#include "tests/planner/problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agpcs::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(PlanProblem, TheFastestOfAllSeedersWins) {
  const auto problem = problem_of(chain(12, 512), fast_and_slow(), 256);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_EQ(planned->seeders.size(), 4u);
  for (const Attempt& attempt : planned->seeders) {
    ASSERT_TRUE(attempt.step_seconds.has_value()) << attempt.name << ": " << attempt.why_not;
    EXPECT_LE(planned->best.estimate.step_seconds, *attempt.step_seconds) << attempt.name;
  }
  ASSERT_EQ(planned->baselines.size(), 2u);
  EXPECT_EQ(planned->baselines[0].name, "data_parallel");
  EXPECT_EQ(planned->baselines[1].name, "degree");
  EXPECT_LE(planned->best.estimate.step_seconds, *planned->baselines[0].step_seconds);
}

TEST(PlanProblem, ThePlanVerifiesReadsBackAndHasWhatIsExpected) {
  const auto problem = problem_of(chain(6), fast_and_slow(), 48);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const Plan& plan = planned->best.plan;
  EXPECT_EQ(verify_plan_against(plan, problem->graph, problem->cluster).message(), "");
  const std::string text = print_plan(plan);
  const auto again = parse_plan(text, "p.plan");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(print_plan(*again), text);
  EXPECT_THAT(text, HasSubstr("\nexpect\n"));
  EXPECT_EQ(plan.made_by.refiner, "none");
}

TEST(PlanProblem, TwiceTheSameBytes) {
  const auto problem = problem_of(chain(9), fast_and_slow(), 96);
  PlanOptions options;
  options.seed = 3;
  EXPECT_EQ(print_plan(plan_problem(*problem, options)->best.plan),
            print_plan(plan_problem(*problem, options)->best.plan));
}

TEST(PlanProblem, OnlyTheSeedersAskedForRun) {
  const auto problem = problem_of(chain(9), fast_and_slow(), 96);
  PlanOptions options;
  options.seeders = {"metis"};
  std::vector<std::string> steps;
  options.progress = [&](std::string_view what, int number, int of) {
    steps.push_back(std::string(what) + " " + std::to_string(number) + "/" + std::to_string(of));
  };
  const auto planned = plan_problem(*problem, options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->best.plan.made_by.seeder, "metis");
  EXPECT_GE(planned->best.plan.stages.size(), 2u);
  EXPECT_EQ(steps, (std::vector<std::string>{"metis 1/3", "baseline data_parallel 2/3",
                                             "baseline degree 3/3"}));
}

TEST(PlanProblem, TheNumberOfMicroBatchesCanBeFixed) {
  ProblemOptions options;
  options.micro_batches = 6;
  const auto problem = problem_of(chain(9), fast_and_slow(), 96, options);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->best.plan.micro_batches, 6);
}

TEST(PlanProblem, SlowDevicesAreLeftOutWhereTheNetworkEatsTheirHelp) {
  const auto problem = problem_of(chain(6, 1024), fast_and_slow("16e9", "1e6"), 32);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  for (const PlanStage& stage : planned->best.plan.stages) {
    for (const std::string& device : stage.devices) EXPECT_THAT(device, HasSubstr("a/"));
  }
}

TEST(PlanProblem, APipelineIsFoundWhereOneDeviceCannotHoldTheModel) {
  // 8 layers of 4 MB: with gradients 67 MB of weights alone, on devices of 50 MB.
  const auto problem = problem_of(chain(8, 1024), fast_and_slow("50e6"), 32);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_GE(planned->best.plan.stages.size(), 2u);
  EXPECT_THAT(planned->baselines[0].why_not, HasSubstr("lacks"));
  EXPECT_FALSE(planned->baselines[0].step_seconds.has_value());
}

TEST(PlanProblem, AnInfeasibleProblemSaysWhichDeviceLacksHowMuch) {
  const auto problem = problem_of(chain(8, 1024), fast_and_slow("5e6"), 32);
  const Status status = plan_problem(*problem, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInfeasible);
  EXPECT_THAT(status.message(),
              MatchesRegex("device [ab]/[01] lacks [0-9]+ bytes: it has 5000000 \\(5.00MB\\), and "
                           "the step needs [0-9]+ \\([0-9.]*MB\\)\n"
                           "  parameters .*, gradients .*, optimizer .*, activations .*, "
                           "transfers .*, workspace .*\n"
                           "  hint: what would help: more devices, so that each holds fewer "
                           "parameters; precision fp16 or bf16; devices with more memory"));
}

TEST(Problem, BadNumbersAreRefused) {
  const Graph graph = chain(2);
  ProblemOptions options;
  EXPECT_THAT(Problem::make(graph, fast_and_slow(), training_of(graph, 0)).status().message(),
              HasSubstr("no batch to plan for"));
  options.micro_batches = 5;
  EXPECT_EQ(
      Problem::make(graph, fast_and_slow(), training_of(graph, 32), options).status().message(),
      "a batch of 32 does not divide into 5 micro-batches");
  Training training = training_of(graph, 32);
  training.precision = "bf16";
  EXPECT_THAT(Problem::make(graph, fast_and_slow(), training).status().message(),
              HasSubstr("device kind 'fast' has no peak for precision 'bf16'"));
}

}  // namespace
}  // namespace agpcs::testing
