// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/flow_episode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace agpcs {
namespace {

constexpr FlowLevel kLevels[] = {FlowLevel::kTrees, FlowLevel::kWorkloads};

struct Toy {
  Topology topology = *make_topology("torus:2,3");
  FlowForest forest = make_forest(topology, {ForestKind::kBalanced, 1, 1}, true);

  FlowEpisode draw(FlowLevel level, std::uint64_t seed, double rounds_weight = 0) const {
    return draw_episode(topology, forest, FlowPhases::kOverlapped, random_flow_policy(4, 1), level,
                        {0.95, rounds_weight}, Rng(seed));
  }
};

TEST(FlowEpisode, RewardsOfWorkloadsAreFormula5) {
  const Toy toy;
  const FlowEpisode episode = toy.draw(FlowLevel::kWorkloads, 1);
  EXPECT_EQ(episode.steps.size(), 2U * 6 * 5);  // a step a workload
  EXPECT_NEAR(std::accumulate(episode.rewards.begin(), episode.rewards.end(), 0.0), 1, 1e-12);
  std::vector<double> sent(episode.rewards.size(), 0);
  for (const FlowEpisode::Step& step : episode.steps) {
    sent[static_cast<std::size_t>(step.round)] += 1 / 60.0;
  }
  for (std::size_t t = 0; t < sent.size(); ++t) EXPECT_NEAR(episode.rewards[t], sent[t], 1e-12);
}

TEST(FlowEpisode, RewardsOfTreesAreFormulas3And4) {
  const Toy toy;
  const FlowEpisode episode = toy.draw(FlowLevel::kTrees, 1);
  std::vector<double> selected(episode.rewards.size(), 0);
  for (const FlowEpisode::Step& step : episode.steps) {
    selected[static_cast<std::size_t>(step.round)] += step.chosen == 0 ? 0.1 / 6 : 0;
  }
  const double all = std::accumulate(episode.rewards.begin(), episode.rewards.end(), 0.0);
  const double chosen = std::accumulate(selected.begin(), selected.end(), 0.0);
  EXPECT_GT(chosen, 0);
  EXPECT_NEAR(all, 1 + chosen + 10 - (episode.rounds - 1) * 6.0 / 60, 1e-9);
}

TEST(FlowEpisode, RoundsAboveTheBoundCountOnlyWhereAsked) {
  const Toy toy;
  EXPECT_EQ(toy.draw(FlowLevel::kTrees, 2).last_reward, 0);
  const FlowEpisode episode = toy.draw(FlowLevel::kTrees, 2, 3);
  EXPECT_GT(episode.rounds, episode.bound);
  EXPECT_DOUBLE_EQ(episode.last_reward, -3 * (episode.rounds / episode.bound - 1));
}

TEST(FlowEpisode, ChancesAreThoseOfTheNetworksValues) {
  const Toy toy;
  const FlowPolicy policy = random_flow_policy(4, 1);
  const FlowEpisode episode = toy.draw(FlowLevel::kWorkloads, 3);
  const auto value = [&](int row) {
    return policy.workloads.value(
        std::span(episode.rows)
            .subspan(static_cast<std::size_t>(row) * kWorkloadFeatureCount, kWorkloadFeatureCount));
  };
  for (const FlowEpisode::Step& step : episode.steps) {
    double sum = 0;
    const auto first = static_cast<std::size_t>(step.first);
    for (int c = 0; c < step.count; ++c) {
      sum += std::exp(value(episode.choices[first + static_cast<std::size_t>(c)]));
    }
    const double chosen = value(episode.choices[first + static_cast<std::size_t>(step.chosen)]);
    EXPECT_NEAR(step.chance, chosen - std::log(sum), 1e-9);
  }
}

TEST(FlowEpisode, AdvantagesCompareWithTheOtherEpisodesAtTheSameRound) {
  FlowEpisode better, worse;
  better.rewards = {1, 0};
  worse.rewards = {0, 0};
  const auto advantages = advantages_of(std::vector<FlowEpisode>{better, worse}, 0.5);
  EXPECT_GT(advantages[0][0], 0);
  EXPECT_NEAR(advantages[0][0], -advantages[1][0], 1e-12);
  EXPECT_EQ(advantages[0][1], 0);
}

TEST(FlowEpisode, GradientIsThatOfTheLoss) {
  const Toy toy;
  for (const FlowLevel level : kLevels) {
    const FlowEpisode episode = toy.draw(level, 4);
    const std::size_t width = level == FlowLevel::kTrees ? std::size_t{kTreeFeatureCount}
                                                         : std::size_t{kWorkloadFeatureCount};
    // Values other than those of the draw, so that ratios are not 1.
    std::vector<float> values(episode.rows.size() / width);
    Rng rng(5);
    for (float& value : values) value = static_cast<float>(2 * rng.uniform() - 1);
    std::vector<double> advantages(episode.rewards.size());
    for (double& advantage : advantages) advantage = 2 * rng.uniform() - 1;
    const FlowObjective objective = {0.2, 0.1};
    const auto loss = [&](std::vector<float>& gradient) {
      gradient.assign(values.size(), 0);
      return add_gradient(episode, advantages, values, objective, episode.steps.size(), gradient)
          .loss;
    };
    std::vector<float> gradient, unused;
    loss(gradient);
    for (std::size_t row = 0; row < values.size(); row += 7) {
      const float before = values[row];
      values[row] = before + 1e-3F;
      const double above = loss(unused);
      values[row] = before - 1e-3F;
      const double below = loss(unused);
      values[row] = before;
      EXPECT_NEAR(gradient[row], (above - below) / 2e-3, 1e-4 + 0.02 * std::abs(gradient[row]));
    }
  }
}

}  // namespace
}  // namespace agpcs
