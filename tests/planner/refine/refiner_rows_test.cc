// SPDX-License-Identifier: Apache-2.0
// What refiner_bench compares: its rows, policies that learned nothing, and its intervals.
#include "tests/bench/refiners/refiner_rows.h"

#include "planner/learn/untrained_network.h"
#include "planner/refine/features.h"
#include "tests/bench/support/measuring.h"
#include "tests/planner/refine/imagining_toy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using bench::refiner_row;

constexpr int kGuess = static_cast<int>(Feature::kRoughChange);

/// The cost in the end; `walks`: how many ends of walks were evaluated.
double refine(const std::string& row, std::int64_t evaluations, std::uint64_t seed,
              int* walks = nullptr) {
  ImaginingToy point(many_jobs(), two_starts());
  SearchBudget budget(evaluations);
  bench::make_refiner_of(refiner_row(row, "shipped", true), seed)->refine(point, budget, Rng(seed));
  EXPECT_EQ(point.evaluations(), evaluations) << row;
  EXPECT_EQ(budget.made(), evaluations) << row;
  if (walks != nullptr) *walks = point.walks();
  return point.outcome().cost;
}

TEST(RefinerRows, AreARefinerItsPolicyAndWhetherItWalks) {
  const bench::RefinerRow plain = refiner_row("anneal", "shipped", true);
  EXPECT_EQ(plain.refiner, "anneal");
  EXPECT_EQ(plain.policy, "");
  EXPECT_FALSE(plain.walks);
  EXPECT_TRUE(refiner_row("anneal+walks", "shipped", true).walks);
  const bench::RefinerRow random = refiner_row("dqn:random:7-walks", "shipped", true);
  EXPECT_EQ(random.refiner, "dqn");
  EXPECT_EQ(random.policy, "random:7");
  EXPECT_FALSE(random.walks);
  EXPECT_TRUE(refiner_row("dqn", "my.policy", true).walks);
  EXPECT_EQ(refiner_row("dqn", "my.policy", true).policy, "my.policy");
  EXPECT_FALSE(refiner_row("dqn", "shipped", false).walks);
}

TEST(RefinerRowsDeathTest, EndTheProgramWhereARowIsNone) {
  const auto ends = ::testing::ExitedWithCode(1);
  EXPECT_EXIT(refiner_row("anneal:zero", "shipped", true), ends,
              "refiner_bench: error: 'anneal:zero': only dqn has a policy");
  EXPECT_EXIT(refiner_row("random+walks", "shipped", true), ends,
              "refiner_bench: error: 'random.walks': only dqn, greedy and anneal walk");
  EXPECT_EXIT(refiner_row("anneal+walks", "shipped", false), ends,
              "refiner_bench: error: 'anneal.walks' walks, which --no-imagination forbids");
}

TEST(RefinerRows, WalkOnlyWhereTheySay) {
  for (const char* row : {"dqn", "dqn:zero", "greedy+walks", "anneal+walks"}) {
    int walks = 0;
    refine(row, 500, 1, &walks);
    EXPECT_GE(walks, 3) << row;
  }
  for (const char* row : {"dqn-walks", "greedy", "anneal", "random"}) {
    int walks = 0;
    refine(row, 500, 1, &walks);
    EXPECT_EQ(walks, 0) << row;
  }
}

TEST(RefinerRows, FindTheSameForTheSameSeedAndNothingWorseThanTheFirstStart) {
  for (const char* row : {"greedy+walks", "anneal+walks"}) {
    for (const std::int64_t budget : {1, 7, 60, 500}) {
      const double cost = refine(row, budget, 3);
      EXPECT_LE(cost, 1) << row << ", " << budget;
      EXPECT_EQ(cost, refine(row, budget, 3)) << row << ", " << budget;
    }
  }
}

TEST(RefinerRows, FindMoreWithWalksWhereTheFormulaIsRight) {
  for (const std::string row : {"greedy", "anneal"}) {
    double with = 0, without = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      with += refine(row + "+walks", 200, seed);
      without += refine(row, 200, seed);
    }
    EXPECT_LT(with, without) << row;
  }
}

TEST(RefinerRows, SearchOnWhereASpaceHasNoFormula) {
  ToySearch point(many_jobs(), two_starts());  // has no formula
  SearchBudget budget(300);
  bench::make_refiner_of(refiner_row("anneal+walks", "shipped", true), 1)
      ->refine(point, budget, Rng(1));
  EXPECT_EQ(point.evaluations(), 300);
}

TEST(UntrainedNetwork, SaysItsGuessExactlyWhateverTheOtherUnitsAre) {
  const QNetwork network = untrained_network(64, kGuess, Rng(5));
  Features features = {};
  features.fill(0.7F);
  for (const float guess : {-2.0F, -0.001F, 0.0F, 0.3F, 4.0F}) {
    features[kGuess] = guess;
    EXPECT_EQ(network.value(features), -static_cast<double>(guess));
  }
}

TEST(UntrainedNetwork, IsAnotherOneForAnotherSeedWithoutAGuess) {
  Features features = {};
  features.fill(0.7F);
  const double value = untrained_network(64, -1, Rng(5)).value(features);
  EXPECT_EQ(value, untrained_network(64, -1, Rng(5)).value(features));
  EXPECT_NE(value, untrained_network(64, -1, Rng(6)).value(features));
}

TEST(Measuring, IntervalsAreStudentsT) {
  EXPECT_NEAR(bench::students_t(39), 2.0227, 5e-5);  // of the usual tables
  EXPECT_NEAR(bench::students_t(4), 2.776, 1e-3);
  EXPECT_EQ(bench::students_t(1), 12.706);
  const bench::Interval interval = bench::interval(std::vector<double>{1, 2, 3, 4, 5});
  EXPECT_DOUBLE_EQ(interval.mean, 3);
  EXPECT_NEAR(interval.half, 1.963, 1e-3);
  EXPECT_EQ(bench::interval(std::vector<double>{7}).half, 0);
}

}  // namespace
}  // namespace agpcs
