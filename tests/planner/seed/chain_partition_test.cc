// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/chain_partition.h"

#include "ir/base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace agpcs {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// A chain with the given weights on units of the given speeds: stages take contiguous runs.
struct Chain {
  std::vector<double> weights, cuts, speeds;

  ChainProblem problem(int most_stages) const {
    ChainProblem p;
    p.pieces = static_cast<int>(weights.size());
    p.states = static_cast<int>(speeds.size()) + 1;
    p.most_stages = most_stages;
    for (int from = 0; from < p.states; ++from) {
      for (int to = from + 1; to < p.states; ++to) p.groups.push_back({from, to, from, to - 1});
    }
    p.stage_seconds = [this, groups = p.groups](int i, int j, int group, int later, double most) {
      double work = 0, speed = 0;
      for (int piece = i; piece < j; ++piece) work += weights[static_cast<std::size_t>(piece)];
      for (int unit = groups[static_cast<std::size_t>(group)].from;
           unit < groups[static_cast<std::size_t>(group)].to; ++unit) {
        speed += speeds[static_cast<std::size_t>(unit)];
      }
      const double seconds = work / speed > 4 + later ? kNever : work / speed;  // memory
      return seconds > most ? std::nextafter(most, kNever) : seconds;
    };
    p.cut_seconds = [this](int i, int exit, int entry) {
      return cuts[static_cast<std::size_t>(i)] * (1 + 0.1 * exit + 0.05 * entry);
    };
    return p;
  }
};

/// The best over all ways to place `stages` more stages from `piece` and `state` on, by trying all.
double brute_force(const ChainProblem& p, int stages, int piece, int state, int exit) {
  if (stages == 0) return piece == p.pieces ? 0 : kNever;
  double best = kNever;
  for (int j = piece + 1; j <= p.pieces; ++j) {
    for (int g = 0; g < static_cast<int>(p.groups.size()); ++g) {
      const ChainGroup& group = p.groups[static_cast<std::size_t>(g)];
      if (state >= 0 && group.from != state) continue;
      const double cut = piece > 0 ? p.cut_seconds(piece, exit, group.entry) : 0;
      best = std::min(best, std::max({cut, p.stage_seconds(piece, j, g, stages - 1, kNever),
                                      brute_force(p, stages - 1, j, group.to, group.exit)}));
    }
  }
  return best;
}

Chain random_chain(Rng& rng) {
  Chain chain;
  const std::size_t pieces = 1 + rng.below(6), units = 1 + rng.below(5);
  for (std::size_t i = 0; i < pieces; ++i) chain.weights.push_back(0.1 + rng.uniform());
  for (std::size_t i = 0; i < pieces; ++i) chain.cuts.push_back(0.3 * rng.uniform());
  for (std::size_t i = 0; i < units; ++i) chain.speeds.push_back(0.2 + 2 * rng.uniform());
  return chain;
}

TEST(ChainPartition, EqualsTryingEverything) {
  Rng rng(11);
  for (int round = 0; round < 60; ++round) {
    const Chain chain = random_chain(rng);
    const ChainProblem problem = chain.problem(4);
    const std::vector<ChainPlan> plans = partition_chain(problem);
    std::vector<double> found(5, kNever);
    for (const ChainPlan& plan : plans) found[plan.stages.size()] = plan.seconds;
    for (int k = 1; k <= 4; ++k) {
      const double best = k <= problem.pieces ? brute_force(problem, k, 0, -1, 0) : kNever;
      EXPECT_DOUBLE_EQ(found[static_cast<std::size_t>(k)], best) << "round " << round << ", " << k;
    }
  }
}

TEST(ChainPartition, BoundsLoseNothingThatIsWithinThem) {
  Rng rng(12);
  for (int round = 0; round < 60; ++round) {
    const Chain chain = random_chain(rng);
    ChainProblem problem = chain.problem(4);
    problem.fill = static_cast<double>(rng.below(8));
    const auto least_step = [&] {
      double best = kNever;
      for (const ChainPlan& plan : partition_chain(problem)) {
        best =
            std::min(best, (problem.fill + static_cast<double>(plan.stages.size())) * plan.seconds);
      }
      return best;
    };
    const double best = least_step();
    problem.within = 1;
    problem.least_before = [&](int i, int state) {
      double work = 0, speed = 0;
      for (int p = 0; p < i; ++p) work += chain.weights[static_cast<std::size_t>(p)];
      for (int u = 0; u < state; ++u) speed += chain.speeds[static_cast<std::size_t>(u)];
      return speed > 0 ? work / speed : kNever;
    };
    EXPECT_DOUBLE_EQ(least_step(), best) << "round " << round;
  }
}

TEST(ChainPartition, StagesCoverAllPiecesInOrder) {
  const Chain chain = {{1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 2}};
  const ChainProblem problem = chain.problem(2);
  const std::vector<ChainPlan> plans = partition_chain(problem);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].seconds, 2);  // both units together
  ASSERT_EQ(plans[1].stages.size(), 2u);
  EXPECT_EQ(plans[1].seconds, 2);
  EXPECT_EQ(plans[1].stages[0].end_piece, 2);
  EXPECT_EQ(plans[1].stages[1].first_piece, 2);
  EXPECT_EQ(plans[1].stages[1].end_piece, 6);
  EXPECT_EQ(problem.groups[static_cast<std::size_t>(plans[1].stages[1].group)].from, 1);
}

TEST(ChainPartition, ADearCutIsAvoided) {
  const Chain chain = {{1, 1, 1, 1}, {0, 9, 9, 0.1}, {1, 1}};
  EXPECT_EQ(partition_chain(chain.problem(2))[1].stages[1].first_piece, 3);
}

}  // namespace
}  // namespace agpcs
