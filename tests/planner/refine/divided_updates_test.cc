// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/divided_updates.h"

#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

/// Two hosts of two devices, whose memory is slow, so that updates take long.
Cluster slow_updates() {
  return cluster_of(
      "kind k memory=4e9 bandwidth=20e9 fp32=15e12\n"
      "host a k 2 bandwidth=200e9 nic=12e9\nhost b k 2 bandwidth=200e9 nic=12e9\n");
}

/// Layers with Adam on them.
std::unique_ptr<const Problem> with_slow_updates(Graph graph, std::int64_t batch) {
  Training training = training_of(graph, batch);
  training.optimizer.kind = OptimizerKind::kAdam;
  auto problem = Problem::make(std::move(graph), slow_updates(), training, {});
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return std::move(*problem);
}

std::vector<StateLevel> states(const Strategy& strategy) {
  std::vector<StateLevel> states;
  for (const StageSpec& spec : strategy.stages) states.push_back(spec.state);
  return states;
}

TEST(DividedUpdates, StagesOfSeveralDevicesDivideThemWhereThatIsShorter) {
  const auto problem = with_slow_updates(chain(8, 1024), 64);
  Strategy strategy = strategy_of(
      "micro-batches 4 1f1b\nstage a/0=8 a/1=8 : h0 a0 h1 a1 h2 a2 h3 a3\nstage b/0=16 : *\n",
      problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  ASSERT_TRUE(score.fits());
  const Score before = score;
  choose_divided_updates(*problem, evaluator, strategy, score);
  EXPECT_NE(states(strategy)[0], StateLevel::kWhole);
  EXPECT_EQ(states(strategy)[1], StateLevel::kWhole);
  EXPECT_LT(score.step_seconds, before.step_seconds);
  EXPECT_EQ(score.step_seconds, evaluator.evaluate(strategy).step_seconds);
}

/// The parameters of a stage are gathered beside the passes of the next step, not behind the
/// update.
TEST(DividedUpdates, OneStageDividesWhatMakesItsStepShortest) {
  const auto problem = with_slow_updates(chain(8, 1024), 64);
  const auto step_with = [&](StateLevel level) {
    Strategy strategy =
        strategy_of("stage a/0=16 a/1=16 b/0=16 b/1=16 : *\n", problem->graph, problem->cluster);
    strategy.stages[0].state = level;
    if (level >= StateLevel::kGradients) strategy.buckets.clear();
    return Evaluator(*problem).evaluate(strategy).step_seconds;
  };
  Strategy strategy =
      strategy_of("stage a/0=16 a/1=16 b/0=16 b/1=16 : *\n", problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  choose_divided_updates(*problem, evaluator, strategy, score);
  EXPECT_LT(score.step_seconds, step_with(StateLevel::kWhole));
  for (const StateLevel level : kDividingLevels) EXPECT_LE(score.step_seconds, step_with(level));
}

TEST(DividedUpdates, WithoutThatDimensionNothingIsDivided) {
  Graph graph = chain(8, 1024);
  Training training = training_of(graph, 64);
  training.optimizer.kind = OptimizerKind::kAdam;
  ProblemOptions options;
  options.most_divided = StateLevel::kWhole;
  const auto problem = Problem::make(std::move(graph), slow_updates(), training, options);
  ASSERT_TRUE(problem.ok());
  Strategy strategy = strategy_of("stage a/0=16 a/1=16 b/0=16 b/1=16 : *\n", (*problem)->graph,
                                  (*problem)->cluster);
  const Strategy before = strategy;
  Evaluator evaluator(**problem);
  Score score = evaluator.evaluate(strategy);
  choose_divided_updates(**problem, evaluator, strategy, score);
  EXPECT_TRUE(strategy == before);
}

TEST(DividedUpdates, StepsOfRandomStrategiesNeverGetLonger) {
  Rng rng(11);
  int changed = 0, tried = 0;
  for (int i = 0; i < 100; ++i) {
    const auto problem = with_slow_updates(chain(6, 512), 24 * (1 + i % 5));
    Strategy strategy = random_strategy(rng, *problem);
    Evaluator evaluator(*problem);
    Score score = evaluator.evaluate(strategy);
    if (!score.fits()) continue;
    ++tried;
    const double before = score.step_seconds;
    const std::vector<StateLevel> states_before = states(strategy);
    choose_divided_updates(*problem, evaluator, strategy, score);
    ASSERT_LE(score.step_seconds, before);
    ASSERT_TRUE(score.fits());
    ASSERT_EQ(evaluator.evaluate(strategy).step_seconds, score.step_seconds);
    const Status valid =
        verify_strategy(strategy, problem->graph, problem->cluster, problem->training.batch);
    ASSERT_TRUE(valid.ok()) << valid.message();
    changed += states(strategy) != states_before ? 1 : 0;
  }
  EXPECT_GT(tried, 30);
  EXPECT_GT(changed, 5);
}

}  // namespace
}  // namespace agpcs::testing
