// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/lower_bound.h"

#include "ir/base/all_values.h"
#include "planner/evaluate/evaluator.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/layouts.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
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
using testing::random_interleaved;
using testing::random_strategy;
using testing::strategies_of;

/// Layers of random widths; some read an earlier layer of their width, too, the first of width 256
/// a gate that has no gradient. `tied`: layers of equal widths have one matrix.
Graph random_graph(Rng& rng, bool tied = false) {
  const int widths[] = {32, 256, 1024};
  const auto width_of = [](int width) { return std::to_string(width); };
  std::string text = "input x [n,256]\ninput mask [n,256]\ninput labels int64[n]\n";
  bool gated = false;
  std::map<std::pair<int, int>, std::string> weights;  // by widths
  std::vector<std::pair<std::string, int>> made = {{"x", 256}};
  const int layers = between(rng, 2, 7);
  for (int i = 0; i < layers; ++i) {
    const auto [last, from] = made.back();
    const int to = widths[rng.below(3)];
    const std::string n = std::to_string(i);
    std::string& weight = weights[{from, to}];
    if (!tied || weight.empty()) {
      weight = "w" + n;
      text += "parameter " + weight + " [" + width_of(from) + "," + width_of(to) + "]\n";
    }
    text += "h" + n + " = MatMul(" + last + ", " + weight + ") [n," + width_of(to) + "]\n";
    std::string other = "h" + n;
    for (const auto& [name, width] : made) {
      if (name != "x" && width == to && rng.below(2) == 0) other = name;
    }
    text += "a" + n + " = Add(h" + n + ", " + other + ") [n," + width_of(to) + "]\n";
    made.emplace_back("a" + n, to);
    if (to != 256 || gated) continue;
    gated = true;
    text += "g = Sigmoid(mask) [n,256]\nb = Mul(a" + n + ", g) [n,256]\n";
    made.emplace_back("b", to);
  }
  const std::string& last = made.back().first;
  return graph_of(text + "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last +
                  "\nloss l\n");
}

/// What a cluster has more of than another that is made from the same random numbers.
struct More {
  int devices = 0;  ///< of the first host
  double nic = 1, memory = 1;
};

Cluster random_cluster(Rng& rng, const More& more = {}) {
  const char* const launches[] = {"0", "5e-6"};
  const double nics[] = {0.2e9, 3e9, 50e9};
  std::string text;
  const int kinds = between(rng, 1, 3), hosts = between(rng, 1, 3);
  for (int k = 0; k < kinds; ++k) {
    text += "kind k" + std::to_string(k) + " launch=" + launches[rng.below(2)] +
            " bandwidth=" + std::to_string(100 * between(rng, 1, 9)) +
            "e9 fp32=" + std::to_string(between(rng, 1, 15)) +
            "e12 memory=" + std::to_string(more.memory * 4e6 * between(rng, 1, 5)) + "\n";
  }
  for (int h = 0; h < hosts; ++h) {
    text += "host h" + std::to_string(h) + " k" + std::to_string(rng.below(kinds)) + " " +
            std::to_string(between(rng, 1, 3) + (h == 0 ? more.devices : 0)) +
            " nic=" + std::to_string(more.nic * nics[rng.below(3)]) + "\n";
  }
  return cluster_of(text);
}

TEST(LowerBound, NoRandomStrategyIsFaster) {
  Rng rng(1);
  double tightest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 40; ++i) {
    const int batch = between(rng, 1, 6) * 4;
    const bool rounded = i % 4 == 3;
    Graph graph = random_graph(rng, i % 3 == 1);
    Cluster cluster = random_cluster(rng, {.memory = 1e4});
    if (i % 5 == 4) cluster = testing::with_protocols(std::move(cluster));
    const auto problem = problem_of(std::move(graph), std::move(cluster), batch, {},
                                    rounded ? std::optional(DType::kFp16) : std::nullopt);
    const LowerBound bound = lower_bound(*problem);
    ASSERT_GT(bound.any.seconds, 0);
    Evaluator evaluator(*problem);
    for (int j = 0; j < 60; ++j) {
      const Strategy strategy = random_strategy(rng, *problem);
      const double seconds = evaluator.evaluate(strategy).step_seconds;
      tightest = std::min(tightest, seconds / bound.any.seconds);
      if (strategy.stages.size() == 1) {
        ASSERT_GE(seconds, bound.one_stage.seconds) << bound.one_stage.reason;
      }
      ASSERT_GE(seconds, bound.any.seconds)
          << bound.any.reason << "\n"
          << print_cluster(problem->cluster) << print_graph(problem->graph)
          << print_strategy(strategy, problem->graph, problem->cluster);
    }
  }
  EXPECT_LT(tightest, 1.05);
}

TEST(LowerBound, NoRandomStrategyWithInterleavedStagesIsFaster) {
  Rng rng(21);
  int found = 0;
  for (int i = 0; i < 60; ++i) {
    const auto problem =
        problem_of(random_graph(rng, i % 3 == 1), random_cluster(rng, {}), between(rng, 1, 6) * 4);
    const LowerBound bound = lower_bound(*problem);
    ASSERT_GT(bound.any_interleaved.seconds, 0);
    ASSERT_LE(bound.any_interleaved.seconds, bound.any.seconds);
    Evaluator evaluator(*problem);
    for (int j = 0; j < 40; ++j) {
      const std::optional<Strategy> strategy = random_interleaved(rng, *problem);
      if (!strategy) continue;
      ++found;
      const double seconds = evaluator.evaluate(*strategy).step_seconds;
      ASSERT_GE(seconds, bound.any_interleaved.seconds) << bound.any_interleaved.reason;
    }
  }
  EXPECT_GT(found, 200);
}

/// With two stages on each of two devices, a bubble is half as long: shorter than what no plan
/// takes whose devices have one stage each.
TEST(LowerBound, OfPlansWithoutInterleavedStagesIsNoneOfPlansWithThem) {
  const auto problem = problem_of(testing::chain(64, 1024),
                                  testing::cluster_of("kind gpu memory=100e6 bandwidth=9e15 "
                                                      "fp32=1e12 launch=0\n"
                                                      "host a gpu 2 bandwidth=1e18 latency=0\n"),
                                  2);
  const LowerBound bound = lower_bound(*problem);
  Evaluator evaluator(*problem);
  const auto strategies = strategies_of(*problem, "a/0|a/1|schedule=interleaved,each=8");
  ASSERT_TRUE(strategies.ok()) << strategies.status().message();
  double least = std::numeric_limits<double>::infinity();
  for (const Strategy& strategy : *strategies) {
    least = std::min(least, evaluator.evaluate(strategy).step_seconds);
  }
  EXPECT_LT(least, bound.any.seconds);
  EXPECT_GE(least, bound.any_interleaved.seconds);
}

TEST(LowerBound, NoRandomStrategyThatDividesItsStateIsFaster) {
  Rng rng(2);
  double tightest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 40; ++i) {
    Graph graph = random_graph(rng, i % 3 == 1);
    Training training = testing::training_of(graph, between(rng, 1, 6) * 4);
    training.optimizer.kind = OptimizerKind::kAdam;
    if (i % 4 == 3) training.wire_type = DType::kFp16;
    Cluster cluster = random_cluster(rng, {.memory = 1e4});
    const bool offloads = i % 2 == 1;
    for (DeviceKind& kind : cluster.kinds) {
      if (offloads) kind.host_link = {"pcie", 64e9, 1e-6};
    }
    for (Host& host : cluster.hosts) host.memory_bytes = 1'000'000'000;
    const auto made = Problem::make(std::move(graph), std::move(cluster), training);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Problem& problem = **made;
    const LowerBound bound = lower_bound(problem);
    Evaluator evaluator(problem);
    for (int j = 0; j < 60; ++j) {
      Strategy strategy = random_strategy(rng, problem);
      for (StageSpec& spec : strategy.stages) {
        spec.state = static_cast<StateLevel>(rng.below(5) % 4);
        spec.state_in_host = offloads && j % 2 == 1;
      }
      fit_in_flight(strategy);  // where gradients are divided, backward passes are whole
      const double seconds = evaluator.evaluate(strategy).step_seconds;
      if (strategy.stages.size() == 1) {
        tightest = std::min(tightest, seconds / bound.one_stage.seconds);
        ASSERT_GE(seconds, bound.one_stage.seconds)
            << bound.one_stage.reason << "\n"
            << print_strategy(strategy, problem.graph, problem.cluster);
      }
      ASSERT_GE(seconds, bound.any.seconds) << bound.any.reason;
    }
  }
  EXPECT_LT(tightest, 1.3);
}

/// Returns how far the bounds of random problems rise when their clusters have more.
double rise_with(const More& more) {
  double most = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    LowerBound bounds[2];
    for (const bool has_more : {false, true}) {
      Rng rng(seed);
      Graph graph = random_graph(rng);
      const auto problem =
          problem_of(std::move(graph), random_cluster(rng, has_more ? more : More()), 24);
      bounds[has_more ? 1 : 0] = lower_bound(*problem);
    }
    most = std::max(most, bounds[1].any.seconds / bounds[0].any.seconds - 1);
    if (std::isinf(bounds[0].one_stage.seconds)) continue;
    most = std::max(most, bounds[1].one_stage.seconds / bounds[0].one_stage.seconds - 1);
  }
  return most;
}

// Prices of several stages are the best but for a small part.
TEST(LowerBound, DoesNotRiseWithMoreDevicesBandwidthOrMemory) {
  EXPECT_LT(rise_with({.devices = 2}), 1e-4);
  EXPECT_LT(rise_with({.nic = 3}), 1e-4);
  EXPECT_LT(rise_with({.memory = 2}), 1e-4);
}

// Two operators with 4 MB of weights each fit on two devices of 10 MB, but not on one.
TEST(LowerBound, SaysThatNoPlanWithoutAPipelineFits) {
  const auto problem =
      problem_of(chain(2, 1024),
                 cluster_of("kind gpu fp32=5e12 memory=10e6\nhost a gpu 1\nhost b gpu 1\n"), 16);
  const LowerBound bound = lower_bound(*problem);
  EXPECT_TRUE(std::isinf(bound.one_stage.seconds));
  EXPECT_LT(bound.any.seconds, 1);
}

// Both hosts compute as fast, each another operator; on the other host it takes 100 times as long.
// Networks are so slow that no row crosses.
TEST(LowerBound, OfSeveralStagesCountsWhatCrossesNetworks) {
  const std::string kinds =
      "kind a fp32=10e12 bandwidth=100e9 memory=1e6\nkind b fp32=0.1e12 bandwidth=10000e9 "
      "memory=1e6\n";
  const auto bound_with = [&](const std::string& nic) {
    const auto problem = problem_of(
        chain(4, 256),
        cluster_of(kinds + "host a a 1 nic=" + nic + "\nhost b b 1 nic=" + nic + "\n"), 4096);
    return lower_bound(*problem).any.seconds;
  };
  EXPECT_GT(bound_with("1e6"), 1.1 * bound_with("1e12"));
  EXPECT_GT(bound_with("1e9"), bound_with("1e12"));
}

// One micro-batch goes through one stage after another, whichever devices have them.
TEST(LowerBound, OfAPipelineOfOneMicroBatchIsNearlyReached) {
  const auto problem = problem_of(
      chain(2, 1024),
      cluster_of("kind gpu fp32=5e12 memory=10e6 launch=0\nhost a gpu 2 bandwidth=1e15\n"), 4096,
      {.micro_batches = 1, .part_backward = false});
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 1);
  strategy.stage_of[0] = 0;
  strategy.stages.push_back({{0}, {4096}, false});
  strategy.stages.push_back({{1}, {4096}, false});
  const LowerBound bound = lower_bound(*problem);
  EXPECT_EQ(bound.any.reason, "pipeline");
  const double seconds = Evaluator(*problem).evaluate(strategy).step_seconds;
  EXPECT_NEAR(bound.any.seconds / seconds, 1, 0.05);
  EXPECT_LE(bound.any.seconds, seconds);
}

/// Returns the least step of all pipelines of the problem on two devices.
double best_pipeline(const Problem& problem, std::int64_t micro_batches) {
  Evaluator evaluator(problem);
  const std::int64_t samples = problem.training.batch / micro_batches;
  double best = std::numeric_limits<double>::infinity();
  Strategy strategy;
  strategy.micro_batches = micro_batches;
  strategy.stages = {{{0}, {samples}, false}, {{1}, {samples}, false}};
  for (std::size_t cut = 1; cut < problem.graph.ops.size(); ++cut) {
    strategy.stage_of.assign(problem.graph.ops.size(), 1);
    std::fill_n(strategy.stage_of.begin(), cut, 0);
    for (const Schedule schedule : kPlainSchedules) {
      strategy.schedule = schedule;
      for (std::int64_t first = 1; first <= micro_batches; ++first) {
        for (std::int64_t second = 1; second <= first; ++second) {
          strategy.stages[0].in_flight = strategy.stages[1].in_flight = std::nullopt;
          if (schedule != Schedule::kGPipe) {
            strategy.stages[0].in_flight = first;
            strategy.stages[1].in_flight = second;
          }
          best = std::min(best, evaluator.evaluate(strategy).step_seconds);
        }
      }
    }
  }
  return best;
}

// A device waits for the first passes of another, whatever weight passes it puts off.
TEST(LowerBound, OfTwoDevicesIsNearTheBestOfAllPipelines) {
  const std::pair<int, double> cases[] = {{1, 0.84}, {2, 0.86}, {3, 0.87}, {4, 0.9}, {8, 0.9}};
  for (const auto& [micro_batches, near] : cases) {
    const auto problem = problem_of(
        chain(8, 1024),
        cluster_of("kind gpu fp32=5e12 memory=30e6 launch=0\nhost a gpu 2 bandwidth=1e15\n"), 16384,
        {.micro_batches = micro_batches});
    const LowerBound bound = lower_bound(*problem);
    ASSERT_EQ(bound.one_stage.seconds, std::numeric_limits<double>::infinity());
    const double best = best_pipeline(*problem, micro_batches);
    EXPECT_LE(bound.any.seconds, best);
    EXPECT_GE(bound.any.seconds, near * best) << micro_batches << " micro-batches";
  }
}

TEST(LowerBound, OfOneDeviceIsWhatItTakes) {
  const auto problem = problem_of(chain(6), cluster_of("kind gpu fp32=5e12\nhost a gpu 1\n"), 64);
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 0);
  strategy.stages.push_back({{0}, {64}, false});
  const LowerBound bound = lower_bound(*problem);
  const double seconds = Evaluator(*problem).evaluate(strategy).step_seconds;
  EXPECT_NEAR(bound.any.seconds / seconds, 1, 1e-6);
  EXPECT_EQ(bound.any.reason, "work");
}

TEST(LowerBound, OfManyEqualDevicesAndMuchWorkIsNearlyReached) {
  const auto problem = problem_of(
      chain(4, 1024), cluster_of("kind gpu fp32=5e12 bandwidth=900e9\nhost a gpu 4\n"), 65536);
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 0);
  strategy.stages.push_back({{0, 1, 2, 3}, {16384, 16384, 16384, 16384}, false});
  const double seconds = Evaluator(*problem).evaluate(strategy).step_seconds;
  EXPECT_NEAR(lower_bound(*problem).any.seconds / seconds, 1, 0.01);
}

TEST(LowerBound, ObeysTheNumberOfMicroBatches) {
  const auto free = problem_of(chain(6), fast_and_slow(), 64);
  const auto fixed = problem_of(chain(6), fast_and_slow(), 64, {.micro_batches = 64});
  EXPECT_GT(lower_bound(*fixed).any.seconds, 2 * lower_bound(*free).any.seconds);
}

}  // namespace
}  // namespace agpcs
