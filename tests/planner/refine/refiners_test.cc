// SPDX-License-Identifier: Apache-2.0
// Over the whole table of refiners: what every one of them promises.
#include "planner/refine/refiner.h"
#include "tests/planner/refine/imagining_toy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ostream>
#include <string>

namespace agpcs {

static void PrintTo(const RefinerEntry& entry, std::ostream* out) {  // NOLINT: GoogleTest names it
  *out << entry.name;
}

namespace {

using testing::HasSubstr;

class Refiners : public testing::TestWithParam<RefinerEntry> {
 protected:
  bool searches() const { return GetParam().name != "none"; }
  /// The cost in the end; `made`: the evaluations spent.
  double refine(SearchPoint& point, std::int64_t evaluations, std::uint64_t seed = 1,
                std::int64_t* made = nullptr) const {
    SearchBudget budget(evaluations);
    GetParam().make()->refine(point, budget, Rng(seed));
    if (made != nullptr) *made = budget.made();
    return point.outcome().cost;
  }
};

TEST_P(Refiners, HaveTheNameOfTheirEntry) { EXPECT_EQ(GetParam().make()->name(), GetParam().name); }

TEST_P(Refiners, AreNeverWorseThanTheFirstStart) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (const std::int64_t budget : {1, 7, 60}) {
      ToySearch point(many_jobs(), two_starts());
      EXPECT_LE(refine(point, budget, seed), 1) << "seed " << seed << ", budget " << budget;
    }
  }
}

TEST_P(Refiners, SpendWhatTheyEvaluateAndNoMore) {
  for (const std::int64_t budget : {0, 1, 7, 333}) {
    ToySearch point(many_jobs(), two_starts());
    std::int64_t made = 0;
    refine(point, budget, 1, &made);
    EXPECT_EQ(point.evaluations(), made);
    EXPECT_EQ(made, searches() ? budget : 0);
  }
}

TEST(DqnRefiner, ALargerBudgetNeverEndsWorse) {
  const auto refiner = make_refiner("dqn");
  ASSERT_TRUE(refiner.ok());
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    double last = 1;
    for (const std::int64_t budget : {1, 40, 70, 200, 370, 500, 900, 2000, 5000}) {
      ToySearch point(many_jobs(), two_starts());
      SearchBudget evaluations(budget);
      (*refiner)->refine(point, evaluations, Rng(seed));
      EXPECT_LE(point.outcome().cost, last) << "seed " << seed << ", budget " << budget;
      last = point.outcome().cost;
    }
  }
}

TEST_P(Refiners, FindTheSameSolutionForTheSameSeed) {
  ToySearch first(many_jobs(), two_starts());
  ToySearch second(many_jobs(), two_starts());
  ToySearch other(many_jobs(), two_starts());
  refine(first, 500, 7);
  refine(second, 500, 7);
  refine(other, 500, 8);
  EXPECT_EQ(first.solution(), second.solution());
  if (searches()) {
    EXPECT_NE(first.solution(), other.solution());
  }
}

TEST_P(Refiners, LeaveTheBestSoFarWhenInterrupted) {
  for (const std::int64_t after : {1, 50, 200}) {
    std::atomic<bool> interrupted = false;
    double best_told = 1;
    ToySearch point(many_jobs(), two_starts());
    SearchBudget budget(1000, &interrupted,
                        [&](std::int64_t made, std::int64_t /*of*/, double best) {
                          interrupted = made >= after;
                          best_told = best;
                        });
    GetParam().make()->refine(point, budget, Rng(3));
    EXPECT_LE(budget.made(), after + 100);
    EXPECT_EQ(point.outcome().cost, best_told);
  }
}

TEST_P(Refiners, FindTheOptimumOfTinyCases) {
  if (!searches()) return;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    ToySearch point({.lengths = {7, 5, 4, 4, 3, 2, 1}, .machines = 3, .most = 3},
                    {{0, 0, 0, 1, 1, 1, 2}});
    EXPECT_EQ(refine(point, 3000, seed), point.optimum()) << "seed " << seed;
  }
}

TEST_P(Refiners, MakeABrokenStartWhole) {
  if (GetParam().name == "none" || GetParam().name == "random") return;
  ToySearch point(many_jobs());
  ASSERT_GE(point.outcome().cost, kBroken);
  EXPECT_LT(refine(point, 1000), kBroken);
}

TEST_P(Refiners, EndWhereThereIsNothingToDo) {
  ToySearch point({.lengths = {3}, .machines = 1});
  std::int64_t made = 0;
  EXPECT_EQ(refine(point, 100, 1, &made), 1);
  EXPECT_EQ(made, 0);
}

std::string name_of(const testing::TestParamInfo<RefinerEntry>& refiner) {
  return std::string(refiner.param.name);
}
INSTANTIATE_TEST_SUITE_P(Table, Refiners, testing::ValuesIn(refiners().begin(), refiners().end()),
                         name_of);

double mean_cost(std::string_view name, std::int64_t evaluations) {
  double sum = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    ToySearch point(many_jobs(), two_starts());
    SearchBudget budget(evaluations);
    (*make_refiner(name))->refine(point, budget, Rng(seed));
    sum += point.outcome().cost / 10;
  }
  return sum;
}

TEST(RefinerBaselines, SearchBetterThanRandomWalks) {
  const double random = mean_cost("random", 2000);
  EXPECT_LT(mean_cost("greedy", 2000), random);
  EXPECT_LT(mean_cost("anneal", 2000), random);
}

TEST(RefinerTable, SuggestsTheNameThatWasMeant) {
  const auto refiner = make_refiner("aneal");
  ASSERT_FALSE(refiner.ok());
  EXPECT_EQ(refiner.status().code(), StatusCode::kUsage);
  EXPECT_THAT(refiner.status().message(), HasSubstr("unknown refiner 'aneal'"));
  EXPECT_THAT(refiner.status().message(), HasSubstr("did you mean 'anneal'?"));
}

TEST(RefinerWithAGoodStart, BeginsWhereThePointStandsIfThatIsBetter) {
  ToySearch point(many_jobs(), two_starts());
  SearchBudget first(300);
  (*make_refiner("greedy"))->refine(point, first, Rng(1));
  const double before = point.outcome().cost;
  ASSERT_LT(before, 1);
  SearchBudget second(1);
  (*make_refiner("random"))->refine(point, second, Rng(1));
  EXPECT_LE(point.outcome().cost, before);
}

TEST(Refiner, DqnEndsBeforeItsBudgetWhenWalksFindNothingNew) {
  for (const bool known : {false, true}) {
    ImaginingToy point(many_jobs(), two_starts());
    point.knows_ends = known;
    SearchBudget budget(20000);
    (*make_refiner("dqn"))->refine(point, budget, Rng(1));
    EXPECT_EQ(budget.made() < budget.of(), known);
    EXPECT_GE(point.walks(), 8);
  }
}

}  // namespace
}  // namespace agpcs
