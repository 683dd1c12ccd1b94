// SPDX-License-Identifier: Apache-2.0
// What more hardware may do to a plan, on some problems of tests/bench/planning/more_hardware.h;
// more_hardware_bench plans hundreds of them.
#include "tests/bench/planning/more_hardware.h"

#include "planner/evaluate/evaluator.h"
#include "planner/part_plans.h"
#include "planner/plan_problem.h"
#include "planner/refine/refiner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using bench::best_hand_made;
using bench::growing_problem;
using bench::GrowingProblem;
using bench::HandMade;
using bench::More;
using bench::problem_on;

constexpr double kEqual = 1e-9;

/// The default refiner, with a small budget.
struct Search {
  explicit Search(std::int64_t budget) {
    options.refiner = refiner.get();
    options.budget = budget;
  }
  const std::unique_ptr<Refiner> refiner = std::move(*make_refiner("dqn"));
  PlanOptions options;
};

/// Returns whether the planner plans parts of the problem's cluster, too.
bool plans_parts(const Problem& problem, const PlanOptions& options) {
  Evaluator evaluator(problem);
  const Result<Seeds> seeds = seed(problem, evaluator, options, {});
  EXPECT_TRUE(seeds.ok()) << seeds.status().message();
  return seeds.ok() && wants_part_plans(problem, *seeds);
}

TEST(MoreHardware, NeverTurnsAPlanIntoARefusal) {
  int planned = 0, refused = 0;
  for (int index = 0; index < 48; ++index) {
    const GrowingProblem growing = growing_problem(index);
    const auto before = problem_on(growing.before, growing.before.cluster);
    if (!plan_problem(*before, {}).ok()) {
      ++refused;
      continue;
    }
    ++planned;
    const auto after = problem_on(growing.before, growing.after);
    EXPECT_TRUE(plan_problem(*after, {}).ok()) << growing.before.name;
  }
  EXPECT_GE(planned, 24);
  EXPECT_GE(refused, 8);
}

TEST(MoreHardware, NoPipelineMadeByHandIsFasterThanThePlan) {
  const Search search(200);
  for (int index = 0; index < 24; ++index) {
    const GrowingProblem growing = growing_problem(index);
    const auto problem = problem_on(growing.before, growing.before.cluster);
    const HandMade made = best_hand_made(*problem);
    const Result<Planned> planned = plan_problem(*problem, search.options);
    if (made.strategy.stages.empty()) continue;
    ASSERT_TRUE(planned.ok()) << growing.before.name << ": " << planned.status().message();
    EXPECT_LE(planned->best.estimate.step_seconds, made.seconds * (1 + kEqual))
        << growing.before.name;
  }
}

/// Parts are starts of the search, whatever that finds.
TEST(MoreHardware, NoPlanOfAPartOfTheClusterIsFasterThanThePlan) {
  const Search search(50);
  int parts = 0;
  for (int index = 0; index < 32; ++index) {
    const GrowingProblem growing = growing_problem(index);
    const auto problem = problem_on(growing.before, growing.after);
    if (!plans_parts(*problem, search.options)) continue;
    Evaluator evaluator(*problem);
    double least = std::numeric_limits<double>::infinity();
    for (const Strategy& strategy :
         part_plans(*problem, ClusterParts::kHostsAndKinds, search.options)) {
      const Score score = evaluator.evaluate(strategy);
      EXPECT_TRUE(score.fits()) << growing.before.name;
      least = std::min(least, score.step_seconds);
      ++parts;
    }
    const Result<Planned> planned = plan_problem(*problem, search.options);
    ASSERT_TRUE(planned.ok()) << growing.before.name;
    EXPECT_LE(planned->best.estimate.step_seconds, least * (1 + kEqual)) << growing.before.name;
  }
  EXPECT_GE(parts, 8);
}

/// Where parts are planned, what is planned before is one of them after, with the same budget.
TEST(MoreHardware, WherePartsArePlannedAHostMakesNoPlanOverOnePercentLonger) {
  const Search search(100);
  int planned = 0;
  for (int index = 0; index < 72; ++index) {
    const GrowingProblem growing = growing_problem(index);
    if (growing.more != More::kHost && growing.more != More::kKind) continue;
    const auto before = problem_on(growing.before, growing.before.cluster);
    const auto after = problem_on(growing.before, growing.after);
    if (!plans_parts(*after, search.options)) continue;
    const Result<Planned> old = plan_problem(*before, search.options);
    if (!old.ok()) continue;
    ++planned;
    const Result<Planned> now = plan_problem(*after, search.options);
    ASSERT_TRUE(now.ok()) << growing.before.name;
    EXPECT_LE(now->best.estimate.step_seconds, 1.01 * old->best.estimate.step_seconds)
        << growing.before.name;
  }
  EXPECT_GE(planned, 4);
}

}  // namespace
}  // namespace agpcs
