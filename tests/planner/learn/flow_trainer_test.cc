// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/flow_trainer.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

struct Toy {
  Topology topology = *make_topology("switch:6");
  FlowForest forest = make_forest(topology, {ForestKind::kShortest, 1, 1}, false);

  FlowTrainingLog train(FlowTrainer& trainer, FlowLevel level, int step) const {
    return trainer.train(topology, forest, FlowPhases::kGather, level,
                         Rng(1).fork("step " + std::to_string(step)));
  }
};

FlowTrainingOptions from_random() {
  FlowTrainingOptions options;
  options.guess = false;
  options.learning_rate = 0.01;
  return options;
}

TEST(FlowTrainer, LearnsToTakeFewerRounds) {
  const Toy toy;  // matchings of senders and receivers: first come takes far too many rounds
  FlowTrainingOptions options = from_random();
  options.rewards.rounds_weight = 10;
  const auto trainer = make_flow_trainer(options, nullptr, 3);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    const FlowTrainingLog log = toy.train(*trainer, FlowLevel::kWorkloads, step);
    if (step < 10) first += log.rounds / 10;
    if (step >= 50) last += log.rounds / 10;
  }
  EXPECT_LT(last, first - 0.4);
}

TEST(FlowTrainer, FormulasOfThePaperMakeItSelectTrees) {
  const Toy toy;
  const auto trainer = make_flow_trainer(from_random(), nullptr, 3);
  const double before = toy.train(*trainer, FlowLevel::kTrees, 0).selected;
  FlowTrainingLog log;
  for (int step = 1; step < 40; ++step) log = toy.train(*trainer, FlowLevel::kTrees, step);
  EXPECT_GT(log.selected, before + 0.2);
}

TEST(FlowTrainer, TheFrozenLevelStaysAsItIsBitByBit) {
  const Toy toy;
  const auto trainer = make_flow_trainer(from_random(), nullptr, 3);
  const auto text = [&](bool trees) {
    FlowPolicy policy = random_flow_policy(16, 0);
    (trees ? policy.trees : policy.workloads) =
        trees ? trainer->policy().trees : trainer->policy().workloads;
    return print_flow_policy(policy);
  };
  for (const bool trees : {true, false}) {
    const std::string learning = text(trees), frozen = text(!trees);
    toy.train(*trainer, trees ? FlowLevel::kTrees : FlowLevel::kWorkloads, 0);
    EXPECT_EQ(text(!trees), frozen);
    EXPECT_NE(text(trees), learning);
  }
}

TEST(FlowTrainer, TheAveragedPolicyLiesBetweenTheFirstAndTheLast) {
  const Toy toy;
  FlowTrainingOptions options = from_random();
  options.averaging = 0.75;
  const auto trainer = make_flow_trainer(options, nullptr, 3);
  const Perceptron before = trainer->policy().workloads;
  toy.train(*trainer, FlowLevel::kWorkloads, 0);
  const Perceptron &now = trainer->policy().workloads, &mean = trainer->averaged().workloads;
  for (std::size_t i = 0; i < mean.hidden.size(); ++i) {
    EXPECT_FLOAT_EQ(mean.hidden[i], 0.75F * before.hidden[i] + 0.25F * now.hidden[i]);
  }
}

TEST(FlowTrainer, SameSeedSamePolicy) {
  const Toy toy;
  const auto trained = [&](std::uint64_t seed) {
    const auto trainer = make_flow_trainer({}, nullptr, seed);
    for (int step = 0; step < 4; ++step) {
      toy.train(*trainer, step % 2 == 0 ? FlowLevel::kTrees : FlowLevel::kWorkloads, step);
    }
    return print_flow_policy(trainer->policy());
  };
  EXPECT_EQ(trained(3), trained(3));
  EXPECT_NE(trained(3), trained(4));
}

TEST(FlowTrainer, GoesOnFromAPolicy) {
  const FlowPolicy start = random_flow_policy(5, 9);
  EXPECT_EQ(print_flow_policy(make_flow_trainer({}, &start, 1)->policy()),
            print_flow_policy(start));
}

}  // namespace
}  // namespace agpcs
