// SPDX-License-Identifier: Apache-2.0
// The evaluator of strategies with teams says to the last bit what the simulator says.
#include "planner/evaluate/evaluator.h"

#include "ir/strategy/teams.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/evaluate/memory_bound.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/stage_timers.h"
#include "tests/planner/evaluate/by_simulation.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/random_teams.h"
#include "tests/support/team_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::by_simulation;
using testing::cluster_of;
using testing::expect_equal;
using testing::problem_of;
using testing::random_team_strategy;

Cluster three_hosts() {
  return cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "kind slow memory=300e3 bandwidth=300e9 fp32=5e12\n"
      "host a fast 4 nic=1e9\nhost b slow 3 nic=2e9 bandwidth=10e9\nhost c slow 2 nic=3e9\n");
}

/// Alike hosts, so that the evaluator folds teams.
Cluster many() {
  return cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "host a fast 4 nic=1e9\nhost b fast 4 nic=1e9\nhost c fast 4 nic=1e9\nhost d fast 4 "
      "nic=1e9\n");
}

/// Everything that profiles can say of devices and collectives.
Cluster measured() {
  Cluster cluster = three_hosts();
  cluster.kinds[0].message_overhead = 3e-6;
  cluster.kinds[1].message_overhead = 5e-6;
  cluster.kinds[1].message_compute = 2e-6;
  cluster.kinds[1].overlap = {2e-11, 0.7};
  cluster.kinds[0].overlap = {1e-11, 0.9};
  cluster.collectives = {CollectiveFit{2e-6, 1.3}, CollectiveFit{1e-6, 1.1}};
  return cluster;
}

Cluster with_known_protocols() { return testing::with_protocols(three_hosts(), "c/"); }

struct Case {
  const char* name;
  Graph (*graph)();
  Cluster (*cluster)();
  std::int64_t batch;
  std::int64_t bucket_bytes;
  bool clips = false;
};

void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }  // NOLINT

Graph gpt() { return testing::gpt_graph({2, 4, 32, 8, 8, 64, 40, false}); }
Graph llama() { return testing::llama_graph({2, 4, 32, 8, 2, 64, 40, false}); }

constexpr Case kCases[] = {
    {"gpt", gpt, three_hosts, 48, 0},
    {"gpt_of_a_prime", gpt, three_hosts, 37, 20'000},
    {"gpt_measured_in_small_buckets", gpt, measured, 36, 4'000},
    {"gpt_on_many", gpt, many, 64, 0},
    {"gpt_on_many_of_a_prime_clipped", gpt, many, 61, 30'000, true},
    {"llama_with_protocols", llama, with_known_protocols, 60, 0},
    {"cnn", testing::cnn_graph, three_hosts, 32, 10'000},
    {"cnn_measured_clipped", testing::cnn_graph, measured, 47, 0, true},
};

class TeamEvaluatorOf : public ::testing::TestWithParam<Case> {
 protected:
  TeamEvaluatorOf() {
    ProblemOptions options;
    options.bucket_bytes = GetParam().bucket_bytes;
    Graph graph = GetParam().graph();
    Training training = testing::training_of(graph, GetParam().batch);
    if (GetParam().clips) training.optimizer.max_norm = 1;
    auto problem = Problem::make(std::move(graph), GetParam().cluster(), training, options);
    AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
    problem_ = std::move(*problem);
  }
  std::string text_of(const Strategy& strategy) const {
    return print_strategy(strategy, problem_->graph, problem_->cluster);
  }
  std::unique_ptr<const Problem> problem_;
};

TEST_P(TeamEvaluatorOf, SaysToTheBitWhatTheSimulatorSays) {
  Rng rng(7);
  Evaluator evaluator(*problem_);
  int fitting = 0;
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const Strategy strategy = random_team_strategy(rng, *problem_);
    const Score score = evaluator.evaluate(strategy);
    expect_equal(score, by_simulation(*problem_, strategy), text_of(strategy));
    EXPECT_EQ(evaluator.lacking(strategy), score.lacking);
    EXPECT_LE(score.lacking, MemoryBound(*problem_).most_lacking(strategy));
    fitting += score.fits() ? 1 : 0;
  }
  EXPECT_GT(fitting, 0);
}

TEST_P(TeamEvaluatorOf, SaysOfUnlikeTeamsWhatTheSimulatorSays) {
  Rng rng(9);
  Evaluator evaluator(*problem_);
  int unlike = 0;
  for (int i = 0; i < 15 && !HasFailure(); ++i) {
    const Strategy strategy = random_team_strategy(rng, *problem_, /*unlike=*/true);
    const Score score = evaluator.evaluate(strategy);
    expect_equal(score, by_simulation(*problem_, strategy), text_of(strategy));
    EXPECT_EQ(evaluator.lacking(strategy), score.lacking);
    EXPECT_LE(score.lacking, MemoryBound(*problem_).most_lacking(strategy));
    unlike += has_unlike_teams(strategy) ? 1 : 0;
  }
  EXPECT_GT(unlike, 5);
}

TEST_P(TeamEvaluatorOf, ForgetsWhatItEvaluatedBefore) {
  Rng rng(8);
  std::vector<Strategy> strategies;
  for (int i = 0; i < 15; ++i) {
    strategies.push_back(random_team_strategy(rng, *problem_));
    strategies.push_back(testing::random_strategy(rng, *problem_));
  }
  Evaluator used(*problem_);
  for (const Strategy& strategy : strategies) used.evaluate(strategy);
  for (const Strategy& strategy : strategies) {
    const Score score = used.evaluate(strategy);
    expect_equal(score, Evaluator(*problem_).evaluate(strategy), text_of(strategy));
  }
}

TEST_P(TeamEvaluatorOf, MayEndOnceAStepTakesMoreThanItLooksAt) {
  Evaluator evaluator(*problem_);
  Rng rng(14);
  int early = 0;
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const Strategy strategy = random_team_strategy(rng, *problem_);
    const Score score = evaluator.evaluate(strategy);
    for (const double factor : {0.3, 0.9, 0.99, 1.0, 1.1}) {
      const double most = factor * score.step_seconds;
      const Score found = evaluator.evaluate_up_to(strategy, most);
      EXPECT_EQ(found.lacking, score.lacking);
      if (found.whole) {
        expect_equal(found, score, text_of(strategy));
      } else if (score.fits()) {
        EXPECT_GT(found.step_seconds, most) << text_of(strategy);
        EXPECT_LE(found.step_seconds, score.step_seconds * (1 + 1e-9)) << text_of(strategy);
        early += found.step_seconds < score.step_seconds ? 1 : 0;
      }
      EXPECT_TRUE(factor < 1 || found.whole == score.fits());
    }
  }
  EXPECT_GT(early, 0);
}

TEST_P(TeamEvaluatorOf, GroupsGradientsAsTheGroupingDoes) {
  Evaluator evaluator(*problem_);
  Rng rng(15);
  for (int i = 0; i < 15; ++i) {
    Strategy strategy = random_team_strategy(rng, *problem_);
    strategy.buckets.clear();
    EXPECT_EQ(evaluator.grouped(strategy).buckets,
              group_gradients(*problem_, strategy, problem_->options.bucket_bytes).buckets)
        << text_of(strategy);
  }
}

TEST(TeamRoughStep, IsNearTheSimulatedStep) {
  std::vector<double> off;
  for (const Case& of : kCases) {
    const auto problem = problem_of(of.graph(), of.cluster(), of.batch);
    Evaluator evaluator(*problem);
    RoughModel model(*problem);
    StageTimers timers(*problem);
    Rng rng = Rng(16).fork(of.name);
    for (int i = 0; i < 40; ++i) {
      Strategy strategy = random_team_strategy(rng, *problem);
      strategy.buckets.clear();
      const double simulated = evaluator.evaluate(strategy).step_seconds;
      off.push_back(
          std::abs(std::log(model.step(strategy, timers.of(strategy)).seconds / simulated)));
    }
  }
  std::sort(off.begin(), off.end());
  EXPECT_LT(std::exp(off[off.size() / 2]), 1.05) << "half of the strategies";
  EXPECT_LT(std::exp(off[off.size() * 9 / 10]), 1.15) << "nine of ten";
}

INSTANTIATE_TEST_SUITE_P(Problems, TeamEvaluatorOf, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace agpcs
