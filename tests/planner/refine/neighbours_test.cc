// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/neighbours.h"

#include "planner/seed/pool.h"
#include "tests/bench/planning/small_cases.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace agpcs::testing {
namespace {

constexpr std::int64_t kMost = 400;  // evaluations

/// Layers with Adam on four devices of one host, whose memory is slow, so that updates take long.
std::unique_ptr<const Problem> with_slow_updates(const std::string& memory) {
  Graph graph = chain(4, 512);
  Training training = training_of(graph, 64);
  training.optimizer.kind = OptimizerKind::kAdam;
  auto problem = Problem::make(std::move(graph),
                               cluster_of("kind k memory=" + memory +
                                          " bandwidth=20e9 fp32=15e12\n"
                                          "host a k 4 bandwidth=200e9\n"),
                               training, {});
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return std::move(*problem);
}

TEST(ClimbNeighbours, FindsWhatNeedsSeveralChanges) {
  const auto problem = with_slow_updates("4e9");
  Strategy strategy = strategy_of("stage a/0=64 : *\n", problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  const double alone = score.step_seconds;
  ClimbBudget budget{kMost};
  const std::int64_t made = climb_neighbours(*problem, evaluator, budget, strategy, score);
  EXPECT_GT(made, 0);
  EXPECT_LE(made, kMost);
  EXPECT_GT(strategy.stages.front().devices.size(), 1U);
  EXPECT_NE(strategy.stages.front().state, StateLevel::kWhole);
  EXPECT_LT(score.step_seconds, 0.8 * alone);
}

TEST(ClimbNeighbours, GoesFromAStrategyThatLacksMemoryToOneThatFits) {
  const auto problem = with_slow_updates("16e6");
  Strategy strategy = strategy_of("stage a/0=64 : *\n", problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  ASSERT_FALSE(score.fits());
  ClimbBudget budget{kMost};
  climb_neighbours(*problem, evaluator, budget, strategy, score);
  EXPECT_TRUE(score.fits());
}

TEST(ClimbNeighbours, AnInterruptEndsIt) {
  const auto problem = with_slow_updates("4e9");
  Strategy strategy = strategy_of("stage a/0=64 : *\n", problem->graph, problem->cluster);
  const Strategy before = strategy;
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  const std::atomic<bool> interrupted{true};
  ClimbBudget budget{kMost, &interrupted};
  EXPECT_EQ(climb_neighbours(*problem, evaluator, budget, strategy, score), 0);
  EXPECT_TRUE(budget.ended);
  EXPECT_EQ(strategy, before);
}

TEST(ClimbNeighbours, RandomStrategiesNeverGetWorse) {
  Rng rng(17);
  int better = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto problem = bench::tight_problem(10'000 + seed);
    Strategy strategy = random_strategy(rng, *problem);
    Evaluator evaluator(*problem);
    Score score = evaluator.evaluate(strategy);
    const Score before = score;
    ClimbBudget budget{kMost};
    ASSERT_LE(climb_neighbours(*problem, evaluator, budget, strategy, score), kMost);
    ASSERT_FALSE(is_better(before, score));
    const Score again = evaluator.evaluate(strategy);
    ASSERT_EQ(again.step_seconds, score.step_seconds);
    ASSERT_EQ(again.lacking, score.lacking);
    const Status valid =
        verify_strategy(strategy, problem->graph, problem->cluster, problem->training.batch);
    ASSERT_TRUE(valid.ok()) << valid.message();
    better += is_better(score, before) ? 1 : 0;
  }
  EXPECT_GT(better, 20);
}

}  // namespace
}  // namespace agpcs::testing
