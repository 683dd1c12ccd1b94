// SPDX-License-Identifier: Apache-2.0
#include "planner/linear_program.h"

#include "ir/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace agpcs {
namespace {

/// A chain with the given weights on units of the given speeds.
struct Chain {
  std::vector<double> weights, cuts, speeds;

  LinearProblem problem(int most_stages) const {
    LinearProblem p;
    p.pieces = static_cast<int>(weights.size());
    p.units = static_cast<int>(speeds.size());
    p.most_stages = most_stages;
    p.stage_seconds = [this](int i, int j, int a, int b) {
      double work = 0, speed = 0;
      for (int piece = i; piece < j; ++piece) work += weights[static_cast<std::size_t>(piece)];
      for (int unit = a; unit < b; ++unit) speed += speeds[static_cast<std::size_t>(unit)];
      return work / speed;
    };
    p.cut_seconds = [this](int i, int a) {
      return cuts[static_cast<std::size_t>(i)] * (1 + 0.1 * a);
    };
    return p;
  }
};

/// The best over all ways to place `stages` more stages from `piece` and `unit` on, by trying all.
double brute_force(const LinearProblem& p, int stages, int piece, int unit) {
  if (stages == 0) {
    return piece == p.pieces ? 0 : std::numeric_limits<double>::infinity();
  }
  double best = std::numeric_limits<double>::infinity();
  for (int j = piece + 1; j <= p.pieces; ++j) {
    for (int b = unit + 1; b <= p.units; ++b) {
      const double cut = piece > 0 ? p.cut_seconds(piece, unit) : 0;
      best = std::min(best, std::max({cut, p.stage_seconds(piece, j, unit, b),
                                      brute_force(p, stages - 1, j, b)}));
    }
  }
  return best;
}

TEST(LinearProgram, EqualsTryingEverything) {
  Rng rng(11);
  for (int round = 0; round < 60; ++round) {
    Chain chain;
    const std::size_t pieces = 1 + rng.below(6), units = 1 + rng.below(5);
    for (std::size_t i = 0; i < pieces; ++i) chain.weights.push_back(0.1 + rng.uniform());
    for (std::size_t i = 0; i < pieces; ++i) chain.cuts.push_back(0.3 * rng.uniform());
    for (std::size_t i = 0; i < units; ++i) chain.speeds.push_back(0.5 + 2 * rng.uniform());
    const LinearProblem problem = chain.problem(4);
    const std::vector<LinearPlan> plans = solve_linear(problem);
    ASSERT_EQ(plans.size(), std::min({std::size_t{4}, pieces, units}));
    for (std::size_t k = 1; k <= plans.size(); ++k) {
      double best = std::numeric_limits<double>::infinity();
      for (int first = 0; first < problem.units; ++first) {
        best = std::min(best, brute_force(problem, static_cast<int>(k), 0, first));
      }
      EXPECT_DOUBLE_EQ(plans[k - 1].seconds, best) << "round " << round << ", " << k << " stages";
    }
  }
}

TEST(LinearProgram, StagesCoverAllPiecesInOrder) {
  const Chain chain = {{1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 2}};
  const std::vector<LinearPlan> plans = solve_linear(chain.problem(2));
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].seconds, 2);  // both units together
  ASSERT_EQ(plans[1].stages.size(), 2u);
  EXPECT_EQ(plans[1].seconds, 2);
  EXPECT_EQ(plans[1].stages[0].end_piece, 2);
  EXPECT_EQ(plans[1].stages[1].first_piece, 2);
  EXPECT_EQ(plans[1].stages[1].end_piece, 6);
  EXPECT_EQ(plans[1].stages[1].first_unit, 1);
}

TEST(LinearProgram, ADearCutIsAvoided) {
  const Chain chain = {{1, 1, 1, 1}, {0, 9, 9, 0.1}, {1, 1}};
  EXPECT_EQ(solve_linear(chain.problem(2))[1].stages[1].first_piece, 3);
}

}  // namespace
}  // namespace agpcs
