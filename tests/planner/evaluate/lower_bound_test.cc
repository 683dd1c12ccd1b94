// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/lower_bound.h"

#include "planner/evaluate/evaluator.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::between;
using testing::chain;
using testing::cluster_of;
using testing::fast_and_slow;
using testing::graph_of;
using testing::problem_of;
using testing::random_strategy;

/// Layers of random widths; some read an earlier layer of their width, too, some a tensor without
/// samples.
Graph random_graph(Rng& rng) {
  const int widths[] = {32, 256, 1024};
  const auto width_of = [](int width) { return std::to_string(width); };
  std::string text = "input x [n,256]\ninput labels int64[n]\n";
  std::vector<std::pair<std::string, int>> made = {{"x", 256}};
  const int layers = between(rng, 2, 7);
  for (int i = 0; i < layers; ++i) {
    const auto [last, from] = made.back();
    const int to = widths[rng.below(3)];
    const std::string n = std::to_string(i);
    text += "parameter w" + n + " [" + width_of(from) + "," + width_of(to) + "]\n";
    text += "h" + n + " = MatMul(" + last + ", w" + n + ") [n," + width_of(to) + "]\n";
    std::string other = "h" + n;
    for (const auto& [name, width] : made) {
      if (name != "x" && width == to && rng.below(2) == 0) other = name;
    }
    text += "a" + n + " = Add(h" + n + ", " + other + ") [n," + width_of(to) + "]\n";
    made.emplace_back("a" + n, to);
  }
  const std::string& last = made.back().first;
  return graph_of(text + "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last +
                  "\nloss l\n");
}

Cluster random_cluster(Rng& rng) {
  const char* const launches[] = {"0", "5e-6"};
  const char* const nics[] = {"0.2e9", "3e9", "50e9"};
  std::string text;
  const int kinds = between(rng, 1, 3), hosts = between(rng, 1, 3);
  for (int k = 0; k < kinds; ++k) {
    text += "kind k" + std::to_string(k) + " launch=" + launches[rng.below(2)] +
            " bandwidth=" + std::to_string(100 * between(rng, 1, 9)) +
            "e9 fp32=" + std::to_string(between(rng, 1, 15)) + "e12\n";
  }
  for (int h = 0; h < hosts; ++h) {
    text += "host h" + std::to_string(h) + " k" + std::to_string(rng.below(kinds)) + " " +
            std::to_string(between(rng, 1, 3)) + " nic=" + nics[rng.below(3)] + "\n";
  }
  return cluster_of(text);
}

TEST(LowerBound, NoRandomStrategyIsFaster) {
  Rng rng(1);
  double tightest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 40; ++i) {
    const int batch = between(rng, 1, 6) * 4;
    const bool rounded = i % 4 == 3;
    const auto problem = problem_of(random_graph(rng), random_cluster(rng), batch, {},
                                    rounded ? std::optional(DType::kFp16) : std::nullopt);
    const LowerBound bound = lower_bound(*problem);
    ASSERT_GT(bound.seconds, 0);
    Evaluator evaluator(*problem);
    for (int j = 0; j < 60; ++j) {
      const Strategy strategy = random_strategy(rng, *problem);
      const double seconds = evaluator.evaluate(strategy).step_seconds;
      tightest = std::min(tightest, seconds / bound.seconds);
      ASSERT_GE(seconds, bound.seconds)
          << bound.reason << "\n"
          << print_cluster(problem->cluster) << print_graph(problem->graph)
          << print_strategy(strategy, problem->graph, problem->cluster);
    }
  }
  EXPECT_LT(tightest, 1.05);
}

TEST(LowerBound, OfOneDeviceIsWhatItTakes) {
  const auto problem = problem_of(chain(6), cluster_of("kind gpu fp32=5e12\nhost a gpu 1\n"), 64);
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 0);
  strategy.stages.push_back({{0}, {64}, false});
  const LowerBound bound = lower_bound(*problem);
  const double seconds = Evaluator(*problem).evaluate(strategy).step_seconds;
  EXPECT_NEAR(bound.seconds / seconds, 1, 1e-6);
  EXPECT_EQ(bound.reason, "work");
}

TEST(LowerBound, OfManyEqualDevicesAndMuchWorkIsNearlyReached) {
  const auto problem = problem_of(
      chain(4, 1024), cluster_of("kind gpu fp32=5e12 bandwidth=900e9\nhost a gpu 4\n"), 65536);
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 0);
  strategy.stages.push_back({{0, 1, 2, 3}, {16384, 16384, 16384, 16384}, false});
  const double seconds = Evaluator(*problem).evaluate(strategy).step_seconds;
  EXPECT_NEAR(lower_bound(*problem).seconds / seconds, 1, 0.01);
}

TEST(LowerBound, ObeysTheNumberOfMicroBatches) {
  const auto free = problem_of(chain(6), fast_and_slow(), 64);
  const auto fixed = problem_of(chain(6), fast_and_slow(), 64, {.micro_batches = 64});
  EXPECT_GT(lower_bound(*fixed).seconds, 2 * lower_bound(*free).seconds);
}

// Two items on one device of kind 0 and two of kind 1: item 0 takes 6 or 12 seconds, item 1 takes 6
// or 3. All of item 0 on kind 0 takes 6, item 1 on kind 1 takes 1.5. In T seconds: a part x of item
// 0 on kind 0, 6 x = T; the rest and item 1 on kind 1: 12 (1 - x) + 3 = 2 T. So x = 5/8, T = 3.75.
TEST(SpreadWork, IsPricedAsTheDivisionByHand) {
  const SpreadWork work = {{1, 2}, {6, 12, 6, 3}};
  const std::vector<double> prices = price_kinds(work);
  EXPECT_NEAR(prices[0] + 2 * prices[1], 1, 1e-12);
  EXPECT_NEAR(price_work(work, prices), 3.75, 1e-8);
}

// One device each, three items that each kind alone does in 1 second and the others in 9.
TEST(SpreadWork, OfThreeKindsGoesWhereItIsFastest) {
  const SpreadWork work = {{1, 1, 1}, {1, 9, 9, 9, 1, 9, 9, 9, 1}};
  EXPECT_NEAR(price_work(work, price_kinds(work)), 1, 1e-6);
}

}  // namespace
}  // namespace agpcs
