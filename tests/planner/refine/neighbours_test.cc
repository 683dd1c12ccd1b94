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

TEST(ClimbNeighbours, EndsWhereAnotherClimbStood) {
  const auto problem = with_slow_updates("4e9");
  const Strategy start = strategy_of("stage a/0=64 : *\n", problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  NeighbourClimbs climbs(*problem, {&evaluator});
  Strategy first = start, second = start;
  Score of_first = evaluator.evaluate(start), of_second = of_first;
  ClimbBudget budget{kMost};
  EXPECT_GT(climbs.climb(budget, first, of_first), 0);
  EXPECT_EQ(climbs.climb(budget, second, of_second), 0);
  EXPECT_EQ(second, start);
}

// The last of these problems is one where settings of the nearest do not suffice.
TEST(ClimbNeighbours, MovesOfTheNearestReachFurther) {
  Rng rng(18);
  std::unique_ptr<const Problem> problem;
  Strategy strategy;
  for (std::uint64_t seed = 0; seed <= 28; ++seed) {
    problem = bench::tight_problem(10'000 + seed);
    strategy = random_strategy(rng, *problem);
  }
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  ClimbBudget budget{40 * kMost}, again{40 * kMost}, further{40 * kMost};
  climb_neighbours(*problem, evaluator, budget, strategy, score);
  ASSERT_GT(budget.left, 0);
  const Score before = score;
  climb_neighbours(*problem, evaluator, again, strategy, score);
  EXPECT_EQ(score.step_seconds, before.step_seconds);
  climb_neighbours(*problem, evaluator, further, strategy, score, ClimbReach::kMoves);
  EXPECT_TRUE(is_better(score, before));
}

/// Where a climb ended, and what it took.
struct Ended {
  Strategy strategy;
  double seconds = 0;
  std::int64_t lacking = 0, made = 0, left = 0;
  friend bool operator==(const Ended&, const Ended&) = default;
};

/// Climbs as far as it reaches, wherever another climb stood.
Ended climbed(NeighbourClimbs& climbs, Strategy from, Score score, std::int64_t most) {
  ClimbBudget budget{most};
  const std::int64_t made = climbs.climb(budget, from, score, ClimbReach::kMoves);
  return {std::move(from), score.step_seconds, score.lacking, made, budget.left};
}

TEST(ClimbNeighbours, ThreadsAndWhatIsRememberedChangeNothing) {
  Rng rng(18);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const auto problem = bench::tight_problem(10'000 + seed);
    const Strategy from = random_strategy(rng, *problem);
    Evaluator first(*problem), second(*problem), third(*problem);
    const Score score = first.evaluate(from);
    NeighbourClimbs again(*problem, {&second});
    for (const std::int64_t most : {std::int64_t{37}, kMost}) {  // budgets end anywhere
      NeighbourClimbs alone(*problem, {&first});
      const Ended ended = climbed(alone, from, score, most);
      EXPECT_EQ(climbed(again, from, score, most), ended) << "problem " << seed;
      NeighbourClimbs several(*problem, {&first, &second, &third});
      EXPECT_EQ(climbed(several, from, score, most), ended) << "problem " << seed;
    }
  }
}

}  // namespace
}  // namespace agpcs::testing
