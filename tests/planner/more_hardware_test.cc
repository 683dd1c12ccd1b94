// SPDX-License-Identifier: Apache-2.0
// What more hardware may do to a plan, on some problems of tests/bench/planning/more_hardware.h;
// more_hardware_bench plans hundreds of them.
#include "tests/bench/planning/more_hardware.h"

#include "planner/plan_problem.h"
#include "planner/refine/refiner.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace agpcs {
namespace {

using bench::best_hand_made;
using bench::growing_problem;
using bench::GrowingProblem;
using bench::HandMade;
using bench::problem_on;

constexpr double kEqual = 1e-9;

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
  const std::unique_ptr<Refiner> refiner = std::move(*make_refiner("dqn"));
  PlanOptions options;
  options.refiner = refiner.get();
  options.budget = 200;
  for (int index = 0; index < 24; ++index) {
    const GrowingProblem growing = growing_problem(index);
    const auto problem = problem_on(growing.before, growing.before.cluster);
    const HandMade made = best_hand_made(*problem);
    const Result<Planned> planned = plan_problem(*problem, options);
    if (made.strategy.stages.empty()) continue;
    ASSERT_TRUE(planned.ok()) << growing.before.name << ": " << planned.status().message();
    EXPECT_LE(planned->best.estimate.step_seconds, made.seconds * (1 + kEqual))
        << growing.before.name;
  }
}

}  // namespace
}  // namespace agpcs
