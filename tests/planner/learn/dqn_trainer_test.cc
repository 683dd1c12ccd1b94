// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/dqn_trainer.h"

#include "tests/planner/refine/dqn_toys.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {
namespace {

DqnOptions quick() {
  DqnOptions options;
  options.learning_rate = 0.005;
  options.epsilon_episodes = 100;
  options.target_every = 50;
  options.scale_steps = 20;
  return options;
}

template <typename Point>
QNetwork trained(const DqnOptions& options, int episodes, std::uint64_t seed,
                 const QNetwork* start = nullptr, std::vector<EpisodeLog>* log = nullptr) {
  const auto trainer = make_dqn_trainer(options, start, seed);
  Point point;
  SearchBudget budget(std::numeric_limits<std::int64_t>::max());
  for (int episode = 0; episode < episodes; ++episode) {
    point.go_back();
    double best = 1;
    const EpisodeLog line = trainer->run_episode(
        point, budget, best, Rng(seed).fork("episode " + std::to_string(episode)));
    if (log != nullptr) log->push_back(line);
  }
  return trainer->network();
}

TEST(DqnTrainer, LearnsTheFeatureThatTellsTheGoodMove) {
  const QNetwork network = trained<TellingPoint>(quick(), 120, 1);
  TellingPoint point;
  Rng rng(9);
  for (int i = 0; i < 200; ++i) {
    const std::vector<Move> moves = point.moves(6, rng);
    std::vector<Features> features(moves.size());
    point.describe(moves, features);
    const auto best = std::max_element(
        features.begin(), features.end(),
        [&](const auto& a, const auto& b) { return network.value(a) < network.value(b); });
    EXPECT_EQ(moves[static_cast<std::size_t>(best - features.begin())].kind, 1);
  }
}

TEST(DqnTrainer, LearnsThatALossPaysLater) {
  for (const int n_step : {1, 3}) {
    DqnOptions options = quick();
    options.n_step = n_step;
    options.scale_steps = 0;
    const QNetwork network = trained<PatientPoint>(options, 600, 2);
    const auto value = [&](int move) { return network.value(PatientPoint::features_of(move)); };
    const double gain = 1 / 0.5 - 1 / 1.1;
    EXPECT_NEAR(value(PatientPoint::kGain), gain, 0.1) << n_step;
    EXPECT_NEAR(value(PatientPoint::kPatient), 1 / 1.1 - 1 + options.discount * gain, 0.1)
        << n_step;
    EXPECT_NEAR(value(PatientPoint::kGreedy), 1 / 0.98 - 1, 0.1) << n_step;
  }
}

TEST(DqnTrainer, SameSeedSameNetwork) {
  const std::string text = print_policy(trained<TellingPoint>(quick(), 30, 3));
  EXPECT_EQ(print_policy(trained<TellingPoint>(quick(), 30, 3)), text);
  EXPECT_NE(print_policy(trained<TellingPoint>(quick(), 30, 4)), text);
}

TEST(DqnTrainer, NetworkComputesWhatLibTorchDoes) {
  const QNetwork network = trained<TellingPoint>(quick(), 30, 5);
  const auto tensor = [](const std::vector<float>& numbers) { return torch::tensor(numbers); };
  Rng rng(6);
  for (int i = 0; i < 50; ++i) {
    Features features{};
    for (float& value : features) value = static_cast<float>(4 * rng.uniform() - 2);
    const torch::Tensor raw = tensor({features.begin(), features.end()});
    const torch::Tensor x = (raw - tensor(network.mean)) * tensor(network.scale);
    const torch::Tensor hidden = tensor(network.hidden).view({network.units(), kFeatureCount});
    const torch::Tensor q = torch::nn::functional::linear(x, hidden, tensor(network.bias))
                                .relu()
                                .dot(tensor(network.output));
    EXPECT_NEAR(network.value(features), q.item<float>() + network.output_bias, 1e-5);
  }
}

TEST(DqnTrainer, GoesOnFromANetwork) {
  const QNetwork network = trained<TellingPoint>(quick(), 30, 7);
  const auto trainer = make_dqn_trainer(quick(), &network, 8);
  EXPECT_EQ(print_policy(trainer->network()), print_policy(network));
  EXPECT_NE(print_policy(trained<TellingPoint>(quick(), 12, 8, &network)), print_policy(network));
}

TEST(DqnTrainer, ANewNetworkMayBeginAsMinusAFeature) {
  DqnOptions options = quick();
  options.guess = 5;
  const QNetwork network = make_dqn_trainer(options, nullptr, 1)->network();
  for (const float guess : {-2.0F, -0.25F, 0.0F, 0.5F, 3.0F}) {
    Features features = {};
    features[0] = 1;
    features[5] = guess;
    EXPECT_NEAR(network.value(features), -guess, 1e-6);
  }
}

TEST(DqnTrainer, WhatANewNetworkBeginsAsSurvivesThatFeaturesAreScaled) {
  DqnOptions options = quick();
  options.guess = 5;
  options.learning_rate = 0;
  options.scale_steps = 3;
  const QNetwork network = trained<TellingPoint>(options, 2, 1);
  EXPECT_NE(network.scale[5], 1);
  Features features = {};
  features[5] = -0.1F;
  EXPECT_NEAR(network.value(features), 0.1, 1e-6);
}

TEST(DqnTrainer, ExplorationFallsLinearly) {
  DqnOptions options = quick();
  options.epsilon_episodes = 10;
  std::vector<EpisodeLog> log;
  trained<PatientPoint>(options, 15, 1, nullptr, &log);
  EXPECT_DOUBLE_EQ(log[0].epsilon, 1);
  EXPECT_DOUBLE_EQ(log[5].epsilon, 0.55);
  EXPECT_DOUBLE_EQ(log[10].epsilon, 0.1);
  EXPECT_DOUBLE_EQ(log[14].epsilon, 0.1);
  EXPECT_EQ(log[14].episode, 14);
}

TEST(DqnTrainer, AnEpisodeSpendsAnEvaluationAStepAndKeepsItsBest) {
  const auto trainer = make_dqn_trainer(quick(), nullptr, 1);
  TellingPoint point;
  SearchBudget budget(13);
  double best = 1;
  for (int i = 0; i < 5; ++i) {
    point.go_back();
    trainer->run_episode(point, budget, best, Rng(static_cast<std::uint64_t>(i)));
  }
  EXPECT_EQ(budget.made(), 13);
  EXPECT_LE(best, 1);
  EXPECT_EQ(point.kept(), best);
}

}  // namespace
}  // namespace agpcs
