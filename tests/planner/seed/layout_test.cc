// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/layout/layout.h"

#include "planner/evaluate/evaluate.h"
#include "planner/plan_problem.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "tests/planner/problem/layouts.h"
#include "tests/planner/problem/problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace agpcs::testing {
namespace {

/// What a layout is refused with on `fast_and_slow`.
std::string refusal(std::string_view text) {
  const auto layout = parse_layout(text, fast_and_slow());
  EXPECT_EQ(layout.status().code(), StatusCode::kUsage) << text;
  return layout.status().message();
}

std::vector<Strategy> strategies_of(const Problem& problem, std::string_view text) {
  auto strategies = testing::strategies_of(problem, text);
  EXPECT_TRUE(strategies.ok()) << strategies.status().message();
  return std::move(*strategies);
}

std::string device(int id) { return fast_and_slow().device_name(id); }

TEST(Layout, IsRefusedWithTheReason) {
  EXPECT_THAT(refusal("nowhere/0"),
              ::testing::StartsWith("layout: there is no device 'nowhere/0'\n  hint: "));
  EXPECT_EQ(refusal(device(0) + "|" + device(0)),
            "layout: device " + device(0) + " is there twice");
  EXPECT_EQ(refusal(device(0) + ":0"),
            "layout: the weight of device " + device(0) + " is '0', not a number above 0");
  EXPECT_THAT(refusal(device(0) + ":1," + device(1)),
              ::testing::StartsWith("layout: 1 of the 2 devices of stage '"));
  EXPECT_THAT(refusal(device(0) + "|"),
              ::testing::StartsWith("layout: a stage is empty\n  hint: "));
}

TEST(Layout, OfWhatIsInFlightIsRefusedWithTheReason) {
  const std::string a = device(0), b = device(1), c = device(2);
  EXPECT_EQ(refusal(a + ",in-flight=0|" + b),
            "layout: 'in-flight=0' is not a number of micro-batches above 0");
  EXPECT_EQ(refusal(a + ",in-flight=2,in-flight=3|" + b), "layout: 'in-flight=3' comes second");
  EXPECT_EQ(refusal("in-flight=2|" + b), "layout: stage 'in-flight=2' has no device");
  EXPECT_EQ(refusal(a + ",in-flight=2"), "layout: in-flight= of a single stage has no effect");
  EXPECT_EQ(refusal(a + "|" + b + "|" + c + ",in-flight=3"),
            "layout: stage 2 has 3 micro-batches in flight, the one before it 2: they would wait "
            "for each other\n  hint: in-flight=3 or more in the earlier stages");
}

TEST(Layout, StagesHaveInFlightWhatTheyAreAskedToHave) {
  const auto problem = problem_of(chain(12), fast_and_slow(), 48);
  const auto strategies = strategies_of(
      *problem, "in-flight=5," + device(0) + "|" + device(1) + ",in-flight=3|" + device(2));
  ASSERT_FALSE(strategies.empty());
  for (const Strategy& strategy : strategies) {
    EXPECT_GE(strategy.micro_batches, 5);
    EXPECT_EQ(in_flight_by_stage(strategy), (std::vector<std::int64_t>{5, 3, 1}));
    EXPECT_TRUE(evaluate(*problem, strategy, MadeBy()).ok());
  }
}

TEST(Layout, WeightsGiveTheShares) {
  const auto problem = problem_of(chain(12), fast_and_slow(), 48);
  const auto strategies = strategies_of(*problem, device(1) + ":1," + device(0) + ":3");
  ASSERT_EQ(strategies.size(), 1u);
  EXPECT_THAT(strategies[0].stages[0].devices, ::testing::ElementsAre(0, 1));
  EXPECT_THAT(strategies[0].stages[0].shares, ::testing::ElementsAre(36, 12));
}

TEST(Layout, ADeviceThatSlowsItsStageDownTakesASample) {
  const auto problem = problem_of(chain(12),
                                  cluster_of("kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
                                             "kind slow memory=16e9 bandwidth=1e9 fp32=1e9\n"
                                             "host a fast 1 nic=3e9\nhost b slow 1 nic=3e9\n"),
                                  48);
  const auto strategies = strategies_of(*problem, "a/0,b/0");
  ASSERT_EQ(strategies.size(), 1u);
  EXPECT_THAT(strategies[0].stages[0].devices, ::testing::ElementsAre(0, 1));
  EXPECT_THAT(strategies[0].stages[0].shares, ::testing::ElementsAre(47, 1));
}

TEST(Layout, EveryCandidateHasTheStagesAskedForAndVerifies) {
  const auto problem = problem_of(chain(12), fast_and_slow(), 48);
  for (const std::string& text :
       {device(3) + "|" + device(0) + "|" + device(1),
        device(0) + "," + device(1) + "|" + device(2),
        device(0) + ":2," + device(1) + ":1|" + device(2) + "," + device(3)}) {
    const auto strategies = strategies_of(*problem, text);
    EXPECT_FALSE(strategies.empty()) << text;
    for (const Strategy& strategy : strategies) {
      EXPECT_EQ(strategy.stages.size(),
                static_cast<std::size_t>(std::count(text.begin(), text.end(), '|') + 1));
      EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 48).message(), "");
      EXPECT_TRUE(evaluate(*problem, strategy, MadeBy()).ok()) << text;
    }
  }
}

/// A chain with Adam, on devices that have too little memory to keep all of its state.
std::unique_ptr<const Problem> short_of_memory(const std::string& memory) {
  Graph graph = chain(12);
  Training training = training_of(graph, 48);
  training.optimizer.kind = OptimizerKind::kAdam;
  auto problem = Problem::make(std::move(graph), fast_and_slow(memory), training, {});
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return std::move(*problem);
}

TEST(Layout, AStrategyOfALongerRoughStepThanAskedForIsNoneWhateverItsMemory) {
  for (const std::string memory : {"16e9", "11e6"}) {
    const auto problem = short_of_memory(memory);
    const auto layout = parse_layout(device(0) + "|" + device(1), problem->cluster);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    LayoutStrategies strategies(*problem);
    const auto any = strategies.of(*layout, 4);
    ASSERT_TRUE(any.ok() && *any) << any.status().message();
    const double rough = strategies.rough_seconds(**any);
    const auto as_long = strategies.of(*layout, 4, {.most_seconds = 1.001 * rough});
    ASSERT_TRUE(as_long.ok() && *as_long) << as_long.status().message();
    EXPECT_EQ(**as_long, **any);
    // What fits in memory takes no less than what does not, so half as long is too short for both.
    const auto shorter = strategies.of(*layout, 4, {.most_seconds = 0.5 * rough});
    ASSERT_TRUE(shorter.ok()) << shorter.status().message();
    EXPECT_FALSE(*shorter) << memory;
  }
}

TEST(Layout, StagesOfEqualDevicesGetEqualWork) {
  const auto problem = problem_of(chain(12), fast_and_slow(), 48);
  for (const Strategy& strategy : strategies_of(*problem, device(0) + "|" + device(1))) {
    StageTimer first(*problem, ops_of_stages(strategy.stage_of, 2)[0]);
    StageTimer second(*problem, ops_of_stages(strategy.stage_of, 2)[1]);
    const double a = slowest_seconds(*problem, first, strategy.stages[0]);
    const double b = slowest_seconds(*problem, second, strategy.stages[1]);
    EXPECT_NEAR(a / b, 1, 0.35) << a << " " << b;  // twelve layers and a loss cannot do better
  }
}

std::vector<Strategy> fitting(const Problem& problem, std::vector<Strategy> strategies) {
  Evaluator evaluator(problem);
  strategies.erase(std::remove_if(strategies.begin(), strategies.end(),
                                  [&](const Strategy& s) { return evaluator.lacking(s) > 0; }),
                   strategies.end());
  return strategies;
}

TEST(Layout, StateIsDividedWhereItDoesNotFitElse) {
  const auto problem = short_of_memory("11e6");
  const auto found = fitting(*problem, strategies_of(*problem, device(0) + "," + device(1)));
  ASSERT_FALSE(found.empty());
  for (const Strategy& strategy : found) {
    EXPECT_THAT(strategy.stages[0].devices, ::testing::ElementsAre(0, 1));
    EXPECT_NE(strategy.stages[0].state, StateLevel::kWhole);
  }
}

TEST(Layout, EachLevelOfDividedStateIsTried) {
  const auto problem = short_of_memory("11e6");
  for (const std::string weights : {"", ":1"}) {
    const auto found =
        fitting(*problem, strategies_of(*problem, device(0) + weights + "," + device(1) + weights));
    std::set<StateLevel> levels;
    for (const Strategy& strategy : found) levels.insert(strategy.stages[0].state);
    EXPECT_THAT(levels, ::testing::ElementsAre(StateLevel::kOptimizer, StateLevel::kGradients,
                                               StateLevel::kParameters))
        << weights;
  }
}

TEST(Layout, HelpChangesNoWeights) {
  const auto problem = short_of_memory("11e6");
  const auto found =
      fitting(*problem, strategies_of(*problem, device(0) + ":3," + device(1) + ":1"));
  ASSERT_FALSE(found.empty());
  for (const Strategy& strategy : found) {
    const std::vector<std::int64_t>& shares = strategy.stages[0].shares;
    EXPECT_EQ(shares[0], 3 * shares[1]);
  }
}

TEST(Layout, MoreStagesThanBlocksIsInfeasible) {
  const auto problem = problem_of(chain(1), fast_and_slow(), 48);
  PlanOptions options;
  auto layout = parse_layout(device(0) + "|" + device(1) + "|" + device(2) + "|" + device(3),
                             problem->cluster);
  ASSERT_TRUE(layout.ok());
  options.layout = *layout;
  ASSERT_LT(problem->blocks.size(), 4);
  const auto planned = plan_problem(*problem, options);
  EXPECT_EQ(planned.status().code(), StatusCode::kInfeasible);
  EXPECT_THAT(planned.status().message(),
              ::testing::StartsWith("the model cannot be laid out like that"));
}

}  // namespace
}  // namespace agpcs::testing
