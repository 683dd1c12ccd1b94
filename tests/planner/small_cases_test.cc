// SPDX-License-Identifier: Apache-2.0
// The search over all strategies of small problems (tests/bench): what the benchmark measures the
// planner by must be right itself.
#include "tests/bench/planning/small_cases.h"

#include "planner/bound/lower_bound.h"
#include "planner/evaluate/evaluator.h"
#include "planner/refine/places/neighbours.h"
#include "planner/seed/seeder.h"
#include "tests/planner/evaluate/random_strategies.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using bench::best_below;
using bench::best_in_whole_space;
using bench::Optimum;
using bench::small_problem;
using bench::tight_problem;

/// Those of the generated problems that take least.
std::vector<std::unique_ptr<const Problem>> smallest_problems() {
  std::vector<std::unique_ptr<const Problem>> problems;
  for (std::uint64_t seed = 0; problems.size() < 10; ++seed) {
    auto problem = small_problem(seed);
    const int size = problem->blocks.size() * problem->cluster.device_count();
    if (size <= 15) problems.push_back(std::move(problem));
  }
  return problems;
}

/// The evaluator's answer, infinite where memory lacks.
double seconds_of(Evaluator& evaluator, const Strategy& strategy) {
  const Score score = evaluator.evaluate(strategy);
  return score.fits() ? score.step_seconds : std::numeric_limits<double>::infinity();
}

/// Expects that `best` is a strategy that takes what it says.
void expect_as_fast_as_it_says(const Problem& problem, const Optimum& best) {
  EXPECT_TRUE(
      verify_strategy(best.strategy, problem.graph, problem.cluster, problem.training.batch).ok());
  Evaluator evaluator(problem);
  EXPECT_EQ(seconds_of(evaluator, best.strategy), best.seconds);
}

/// Expects that no strategy of a seeder takes less than `best` seconds.
void expect_no_faster_seed(const Problem& problem, Evaluator& evaluator, double best) {
  for (const SeederEntry& entry : seeders()) {
    const auto strategies = entry.make()->seed(problem, Rng(0));
    ASSERT_TRUE(strategies.ok());
    for (const Strategy& strategy : *strategies) EXPECT_GE(seconds_of(evaluator, strategy), best);
  }
}

TEST(SmallCases, TheBestIsAsFastAsItSaysAndNotBelowTheBound) {
  for (const auto& problem : smallest_problems()) {
    const Optimum best = best_below(*problem);
    if (best.seconds == std::numeric_limits<double>::infinity()) continue;
    expect_as_fast_as_it_says(*problem, best);
    EXPECT_GE(best.seconds, lower_bound(*problem).any.seconds);
  }
}

TEST(SmallCases, NoSeederAndNoRandomStrategyIsFasterThanTheBest) {
  Rng rng(3);
  for (const auto& problem : smallest_problems()) {
    const double best = best_below(*problem).seconds * (1 - 1e-9);
    Evaluator evaluator(*problem);
    ASSERT_NO_FATAL_FAILURE(expect_no_faster_seed(*problem, evaluator, best));
    for (int i = 0; i < 300; ++i) {
      EXPECT_GE(seconds_of(evaluator, testing::random_strategy(rng, *problem)), best);
    }
  }
}

/// Those of the generated problems that are short of memory whose whole space takes least.
struct Solved {
  std::unique_ptr<const Problem> problem;
  Optimum best;
};
std::vector<Solved> solved_tight_problems() {
  constexpr std::int64_t kMost = 100'000;  // evaluations
  std::vector<Solved> solved;
  for (std::uint64_t seed = 0; solved.size() < 8; ++seed) {
    auto problem = tight_problem(20'000 + seed);
    if (problem->blocks.size() > 4) continue;
    Optimum best = best_in_whole_space(*problem, std::numeric_limits<double>::infinity(), kMost);
    if (best.complete) solved.push_back({std::move(problem), std::move(best)});
  }
  return solved;
}

TEST(SmallCases, TheBestInTheWholeSpaceIsAsFastAsItSaysAndNotBelowTheBound) {
  int feasible = 0;
  for (const auto& [problem, best] : solved_tight_problems()) {
    if (best.seconds == std::numeric_limits<double>::infinity()) continue;
    ++feasible;
    expect_as_fast_as_it_says(*problem, best);
    EXPECT_GE(best.seconds, lower_bound(*problem).any_interleaved.seconds);
  }
  EXPECT_GT(feasible, 4);
}

TEST(SmallCases, NothingElseThatWeKnowIsFasterThanTheBestInTheWholeSpace) {
  Rng rng(5);
  for (const auto& [problem, optimum] : solved_tight_problems()) {
    const double best = optimum.seconds * (1 - 1e-9);
    EXPECT_GE(best_below(*problem).seconds, best);
    Evaluator evaluator(*problem);
    ASSERT_NO_FATAL_FAILURE(expect_no_faster_seed(*problem, evaluator, best));
    for (int i = 0; i < 200; ++i) {
      Strategy strategy = testing::random_strategy(rng, *problem);
      Score score = evaluator.evaluate(strategy);
      EXPECT_GE(score.fits() ? score.step_seconds : best, best);
      if (i % 10 > 0) continue;
      ClimbBudget budget{100};
      climb_neighbours(*problem, evaluator, budget, strategy, score);
      EXPECT_GE(score.fits() ? score.step_seconds : best, best);
    }
  }
}

TEST(SmallCases, NothingIsBelowTheBest) {
  for (const auto& problem : smallest_problems()) {
    const double best = best_below(*problem).seconds;
    EXPECT_EQ(best_below(*problem, best).seconds, std::numeric_limits<double>::infinity());
  }
}

/// All strategies of a problem are tried that could be faster than the bound; none is.
TEST(SmallCases, NothingOf500ProblemsIsBelowTheBound) {
  for (std::uint64_t seed = 1000; seed < 1500; ++seed) {
    const auto problem = small_problem(seed);
    const Optimum faster = best_below(*problem, lower_bound(*problem).any.seconds);
    ASSERT_EQ(faster.seconds, std::numeric_limits<double>::infinity()) << "problem " << seed;
    ASSERT_TRUE(faster.complete);
  }
}

TEST(SmallCases, NothingOf150ProblemsWithUnequalMicroBatchesIsBelowTheBound) {
  for (std::uint64_t seed = 2000; seed < 2150; ++seed) {
    const std::int64_t batches[] = {5, 7, 11};
    const auto problem = small_problem(seed, batches[seed % 3]);
    const Optimum faster = best_below(*problem, lower_bound(*problem).any.seconds);
    ASSERT_EQ(faster.seconds, std::numeric_limits<double>::infinity()) << "problem " << seed;
    ASSERT_TRUE(faster.complete);
  }
}

}  // namespace
}  // namespace agpcs
