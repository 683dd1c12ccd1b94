// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/dqn.h"

#include "planner/learn/dqn_replay.h"
#include "planner/learn/dqn_trainer.h"
#include "planner/learn/learning_refiner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <vector>

namespace agpcs {
namespace {

Features marked(float mark) {
  Features features{};
  features[0] = mark;
  return features;
}

/// All that a replay memory holds, by the mark of the move.
std::vector<Transition> sorted(const Replay& replay) {
  Rng rng(1);
  std::vector<Transition> result;
  std::set<float> seen;
  for (const Transition* t : replay.sample(1000, rng)) {
    if (seen.insert(t->chosen[0]).second) result.push_back(*t);
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.chosen[0] < b.chosen[0]; });
  return result;
}

TEST(Reward, IsOneAtTheStartWithoutCommunication) {
  EXPECT_EQ(reward_of({1, 0}, 0.1), 1);
  EXPECT_EQ(reward_of({0.5, 0.2}, 0.1), 2 - 0.1 * 0.2);
}

TEST(Reward, OfABrokenSolutionHasNoThroughput) {
  EXPECT_EQ(reward_of({kBroken, 0}, 0.1), 0);
  EXPECT_EQ(reward_of({2 * kBroken, 1}, 0.1), -0.1);
}

/// Always as good as the start, and with half of its step in communication.
class IdlePoint : public SearchPoint {
 public:
  Outcome outcome() const override { return {1, 0.5}; }
  std::vector<Move> moves(std::size_t /*most*/, Rng& /*rng*/) override { return {}; }
  void describe(std::span<const Move> /*moves*/, std::span<Features> /*features*/) override {}
  void evaluate(std::span<const Move> /*moves*/, std::span<Outcome> /*outcomes*/) override {}
  void take(const Move& /*move*/) override {}
  void keep() override {}
  void go_back() override {}
};

class IdleTrainer : public DqnTrainer {
 public:
  EpisodeLog run_episode(SearchPoint& /*point*/, SearchBudget& /*budget*/, double& /*best_cost*/,
                         Rng /*rng*/) override {
    return {};
  }
  QNetwork network() const override { return shipped_policy(); }
};

TEST(LearningRefiner, LogsItsSearchWithTheLambdaThatItLearnedWith) {
  for (const double lambda : {0.1, 0.4}) {
    IdlePoint point;
    SearchBudget budget(10);
    make_learning_refiner(std::make_unique<IdleTrainer>(), 1, lambda)
        ->refine(point, budget, Rng(1));
    const std::vector<EpisodeLog> log = budget.take_log();
    ASSERT_GE(log.size(), 2U);  // the episode, then the search
    EXPECT_EQ(log.back().reward, 1 - lambda * 0.5);
  }
}

TEST(SearchLog, HasOneLineAnEpisode) {
  const std::vector<EpisodeLog> log = {{0, 1, 0, 0.9, 1}, {1, 0.1 + 0.2, 0.125, 1.5, 2.0 / 3}};
  EXPECT_EQ(print_search_log(log),
            "episode,epsilon,loss,reward,best_cost\n"
            "0,1,0,0.9,1\n"
            "1,0.3,0.125,1.5,0.666667\n");
}

TEST(Replay, ForgetsTheOldestFirst) {
  Replay replay(3);
  for (int i = 0; i < 5; ++i) {
    Transition transition;
    transition.chosen = marked(static_cast<float>(i));
    replay.add(transition);
  }
  const std::vector<Transition> left = sorted(replay);
  ASSERT_EQ(left.size(), 3U);
  EXPECT_EQ(left.front().chosen[0], 2);
  EXPECT_EQ(left.back().chosen[0], 4);
}

TEST(NStep, SumsTheRewardsOfNSteps) {
  Replay replay(10);
  NStep steps(2, 0.5, replay);
  for (int i = 0; i < 3; ++i) {
    const std::vector<Features> moves(2, marked(static_cast<float>(10 * i)));
    steps.arrive(moves);
    steps.step(marked(static_cast<float>(i)), i + 1.0);
  }
  steps.arrive(std::vector<Features>{marked(30)});
  steps.finish();
  const std::vector<Transition> t = sorted(replay);
  ASSERT_EQ(t.size(), 3U);
  EXPECT_EQ(t[0].reward, 1 + 0.5 * 2);
  EXPECT_EQ(t[0].discount, 0.25);
  EXPECT_EQ(t[0].next, std::vector<Features>(2, marked(20)));
  EXPECT_EQ(t[1].reward, 2 + 0.5 * 3);
  EXPECT_EQ(t[1].next, std::vector<Features>{marked(30)});
  EXPECT_EQ(t[2].reward, 3);  // the episode ended one step on
  EXPECT_EQ(t[2].discount, 0.5);
  EXPECT_EQ(t[2].next, std::vector<Features>{marked(30)});
}

TEST(NStep, NothingFollowsAnEndWithoutMoves) {
  Replay replay(10);
  NStep steps(3, 0.5, replay);
  steps.arrive(std::vector<Features>{marked(1)});
  steps.step(marked(1), 4);
  steps.arrive({});
  steps.finish();
  const std::vector<Transition> t = sorted(replay);
  ASSERT_EQ(t.size(), 1U);
  EXPECT_TRUE(t[0].next.empty());
  EXPECT_EQ(t[0].reward, 4);
}

}  // namespace
}  // namespace agpcs
