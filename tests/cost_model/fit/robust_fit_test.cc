// SPDX-License-Identifier: Apache-2.0
#include "cost_model/fit/robust_fit.h"

#include "ir/base/rng.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

namespace agpcs {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

MATCHER_P2(IsWithin, relative, of, "") { return std::abs(arg - of) <= relative * of; }

/// `count` observations of 5 us + FLOPs x 2 ps + bytes x 30 ps, of sizes over four decades.
std::vector<Observation> passes(int count, Rng& rng) {
  std::vector<Observation> observations;
  for (int i = 0; i < count; ++i) {
    const double flops = std::pow(10, 5 + 4 * rng.uniform());
    const double bytes = std::pow(10, 3 + 4 * rng.uniform());
    observations.push_back({{1, flops, bytes}, 5e-6 + 2e-12 * flops + 30e-12 * bytes});
  }
  return observations;
}

TEST(RobustFit, FindsTheCoefficientsThatMadeTheValues) {
  Rng rng(1);
  const RobustFit fit = fit_robustly(passes(12, rng));
  EXPECT_THAT(fit.coefficients,
              ElementsAre(IsWithin(1e-6, 5e-6), IsWithin(1e-6, 2e-12), IsWithin(1e-6, 30e-12)));
  EXPECT_EQ(fit.outliers, 0U);
}

TEST(RobustFit, FindsThemDespiteOutliersAndNoise) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    std::vector<Observation> observations = passes(100, rng);
    for (std::size_t i = 0; i < observations.size(); ++i) {
      observations[i].value *= 1 + 0.02 * (rng.uniform() - 0.5);
      if (i % 10 == 0) observations[i].value *= i % 20 == 0 ? 6 : 0.2;
    }
    const RobustFit fit = fit_robustly(observations);
    EXPECT_THAT(fit.coefficients,
                ElementsAre(IsWithin(0.02, 5e-6), IsWithin(0.02, 2e-12), IsWithin(0.02, 30e-12)));
    EXPECT_GE(fit.outliers, 10U);
    EXPECT_LE(fit.outliers, 12U);
  }
}

TEST(RobustFit, FixesAtZeroWhatWouldBeNegative) {
  std::vector<Observation> falling;
  for (int i = 1; i <= 8; ++i) falling.push_back({{1, static_cast<double>(i)}, 10.0 - i / 2.0});
  const RobustFit fit = fit_robustly(falling);
  EXPECT_EQ(fit.coefficients[1], 0);
  EXPECT_GT(fit.coefficients[0], 5);
  EXPECT_LT(fit.coefficients[0], 10);
}

TEST(RobustFit, IsNeverNegativeWhateverTheValues) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    std::vector<Observation> observations = passes(3 + static_cast<int>(seed % 10), rng);
    for (Observation& o : observations) o.value = rng.uniform() + 1e-9;
    for (const double c : fit_robustly(observations).coefficients) {
      EXPECT_GE(c, 0);
      EXPECT_TRUE(std::isfinite(c));
    }
  }
}

/// The least sum of squared relative errors over all supports, by brute force for two terms.
double least_squares_of_two(const std::vector<Observation>& observations) {
  const auto error = [&](double a, double b) {
    double sum = 0;
    for (const Observation& o : observations) sum += std::pow(relative_error(o, {a, b}), 2);
    return sum;
  };
  double aa = 0, ab = 0, bb = 0, ay = 0, by = 0;
  for (const Observation& o : observations) {
    const double a = o.terms[0] / o.value, b = o.terms[1] / o.value;
    aa += a * a, ab += a * b, bb += b * b, ay += a, by += b;
  }
  double best = std::min({error(0, 0), error(ay / aa, 0), error(0, by / bb)});
  const double det = aa * bb - ab * ab;
  const double x = (ay * bb - by * ab) / det, y = (by * aa - ay * ab) / det;
  if (x >= 0 && y >= 0) best = std::min(best, error(x, y));
  return best;
}

// With noise far inside Tukey's reach all weights are nearly equal: least squares.
TEST(RobustFit, IsNearTheBestOfAllSupports) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    std::vector<Observation> observations;
    const double slope = rng.uniform() < 0.5 ? 0 : rng.uniform();
    for (int i = 0; i < 30; ++i) {
      const double size = 1 + 9 * rng.uniform();
      const double noise = 1 + 0.01 * (rng.uniform() - 0.5);
      observations.push_back({{1, size}, (0.5 + slope * size) * noise});
    }
    const RobustFit fit = fit_robustly(observations);
    double sum = 0;
    for (const Observation& o : observations) {
      sum += std::pow(relative_error(o, fit.coefficients), 2);
    }
    EXPECT_LE(sum, 1.05 * least_squares_of_two(observations)) << seed;
  }
}

TEST(RobustFit, SharesEvenlyWhatCannotBeToldApart) {
  const std::vector<Observation> sums = {{{1, 1, 0}, 4}, {{1, 1, 1}, 9}};
  EXPECT_THAT(fit_robustly(sums).coefficients,
              ElementsAre(DoubleNear(2, 1e-6), DoubleNear(2, 1e-6), DoubleNear(5, 1e-6)));
}

TEST(RobustFit, SetsNothingAsideWhereThereIsNothingToSpare) {
  const std::vector<Observation> few = {{{1, 1}, 2}, {{1, 2}, 3.3}, {{1, 3}, 3.9}};
  EXPECT_EQ(fit_robustly(few).outliers, 0U);
}

TEST(RobustFit, TakesWhatIsKnownBeforehand) {
  const std::vector<Observation> with_offset = {{{1}, 12, 10}, {{2}, 14, 10}};
  EXPECT_THAT(fit_robustly(with_offset).coefficients, ElementsAre(DoubleNear(2, 1e-8)));
}

}  // namespace
}  // namespace agpcs
