// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "planner/evaluate/rough/fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace agpcs::testing {
namespace {

/// A pipeline of random parts.
RoughStep random_step(Rng& rng) {
  RoughStep rough;
  rough.slowest_stage = 0.5 + rng.uniform();
  rough.longest_way = rough.slowest_stage * (1 + 3 * rng.uniform());
  rough.late = rng.uniform();
  rough.reduces = 2 * rng.uniform();
  rough.slowest_cut = rng.uniform();
  rough.seconds = rough.longest_way + 8 * rough.slowest_stage + rough.late;
  return rough;
}

/// Has learned from so many steps, of which `simulated` gives the seconds.
template <typename F>
RoughFit learned(Rng& rng, int steps, F simulated) {
  RoughFit fit;
  for (int i = 0; i < steps; ++i) {
    const RoughStep rough = random_step(rng);
    fit.add(rough, simulated(rough));
  }
  fit.solve();
  return fit;
}

TEST(RoughFit, BelievesTheRoughStepAtFirst) {
  Rng rng(1);
  RoughFit fit;
  EXPECT_EQ(fit.factor(random_step(rng)), 1);
  fit.solve();
  EXPECT_EQ(fit.factor(random_step(rng)), 1);
}

TEST(RoughFit, LearnsSoonByHowMuchAllStepsAreOff) {
  Rng rng(4);
  const RoughFit fit =
      learned(rng, 100, [](const RoughStep& rough) { return 1.2 * rough.seconds; });
  for (int i = 0; i < 40; ++i) EXPECT_NEAR(fit.factor(random_step(rng)), 1.2, 0.06);
}

TEST(RoughFit, LearnsWhichPartIsTooLong) {
  Rng rng(2);
  const auto simulated = [](const RoughStep& rough) { return rough.seconds - rough.late / 2; };
  const RoughFit fit = learned(rng, 10000, simulated);
  double before = 0, after = 0;
  for (int i = 0; i < 100; ++i) {
    const RoughStep rough = random_step(rng);
    before += std::abs(rough.seconds / simulated(rough) - 1);
    after += std::abs(fit.factor(rough) * rough.seconds / simulated(rough) - 1);
  }
  EXPECT_LT(after, before / 3);
}

TEST(RoughFit, LearnsNothingFromWhatIsFarOff) {
  Rng rng(3);
  const RoughFit fit = learned(rng, 100, [](const RoughStep& rough) { return 10 * rough.seconds; });
  EXPECT_EQ(fit.factor(random_step(rng)), 1);
}

}  // namespace
}  // namespace agpcs::testing
