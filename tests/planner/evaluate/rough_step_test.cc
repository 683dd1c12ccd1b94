// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/link_model.h"
#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/problem/stage_timers.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/refine/search_problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

RoughStep rough_step(const Problem& problem, const Strategy& strategy) {
  StageTimers timers(problem);
  return RoughModel(problem).step(strategy, timers.of(strategy));
}

/// Three layers, one a stage, on hosts a, b and c; the last two read what the first one makes.
/// Samples of 256 bytes, links of 1 MB/s behind ports that take next to nothing.
struct ThreeStages {
  std::unique_ptr<const Problem> problem =
      problem_of(graph_of("input x [n,64]\ninput labels int64[n]\n"
                          "parameter w0 [64,64]\nparameter w1 [64,64]\nparameter w2 [64,64]\n"
                          "h0 = MatMul(x, w0) [n,64]\nh1 = MatMul(h0, w1) [n,64]\n"
                          "h2 = MatMul(h1, w2) [n,64]\ng2 = Add(h2, h0) [n,64]\n"
                          "l = SoftmaxCrossEntropyLoss(g2, labels) []\noutputs g2\nloss l\n"),
                 cluster_of("kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
                            "host a gpu 1 nic=1e6\nhost b gpu 1 nic=1e6\nhost c gpu 1 nic=1e6\n"),
                 64);
  Strategy strategy(Schedule schedule) const {
    Strategy strategy;
    strategy.stage_of = {0, 1, 2, 2, 2};
    for (DeviceId id = 0; id < 3; ++id) strategy.stages.push_back({{id}, {4}, false});
    strategy.micro_batches = 16;
    strategy.schedule = schedule;
    return strategy;
  }
};

constexpr double kMessage = 4 * 256 / 1e6;  // seconds, of a tensor of a micro-batch

TEST(RoughStep, CutsOfOneSenderAddUp) {
  const ThreeStages three;
  const RoughStep rough = rough_step(*three.problem, three.strategy(Schedule::k1F1B));
  // a sends h0 twice; b sends h1 and a gradient; c sends two gradients.
  EXPECT_NEAR(rough.slowest_cut, 2 * kMessage, 0.1 * kMessage);
  EXPECT_GT(rough.seconds, 15 * rough.slowest_cut);
}

TEST(RoughStep, WithGPipeForwardAndBackwardPassesFollowOneAnother) {
  const ThreeStages three;
  const RoughStep rough = rough_step(*three.problem, three.strategy(Schedule::kGPipe));
  EXPECT_NEAR(rough.slowest_cut, (2 + 2) * kMessage, 0.2 * kMessage);
}

TEST(RoughStep, A1F1BStageWaitsForWhatItHasInFlight) {
  const ThreeStages three;
  const RoughStep rough = rough_step(*three.problem, three.strategy(Schedule::k1F1B));
  // The last stage but one: there and back, with two micro-batches in flight, is 1 message each;
  // the first: 2 + 2 messages by way of b, 3 in flight; a tensor that goes to two stages goes
  // twice.
  EXPECT_GE(rough.longest_way, 4 * kMessage);
  EXPECT_GE(rough.seconds, rough.longest_way + 15 * rough.longest_way / 3);
}

TEST(RoughStep, SaysWhichStageHasTooFewMicroBatchesInFlight) {
  // A message takes about as long as a forward pass, half as long as a backward one.
  std::string hosts = "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n";
  for (const char* host : {"a", "b", "c", "d"}) {
    hosts += std::string("host ") + host + " gpu 1 nic=25e9\n";
  }
  const auto problem = problem_of(chain(4, 1024), cluster_of(hosts), 1024 * 32);
  const auto with = [&](const std::vector<std::int64_t>& in_flight) {
    Strategy strategy = strategy_of(
        "micro-batches 32\nstage a/0=1024 : h0 a0\nstage b/0=1024 : h1 a1\n"
        "stage c/0=1024 : h2 a2\nstage d/0=1024 : *\n",
        problem->graph, problem->cluster);
    for (std::size_t s = 0; s < in_flight.size(); ++s) strategy.stages[s].in_flight = in_flight[s];
    return strategy;
  };
  Evaluator evaluator(*problem);
  const auto simulated = [&](const Strategy& s) { return evaluator.evaluate(s).step_seconds; };
  const auto is_near = [&](const Strategy& s, double part) {
    EXPECT_NEAR(rough_step(*problem, s).seconds, simulated(s), part * simulated(s));
  };
  is_near(with({}), 0.02);
  EXPECT_GE(rough_step(*problem, with({})).starved, 0);
  const Strategy deeper = with({10, 7, 4, 1});
  is_near(deeper, 0.03);
  EXPECT_EQ(rough_step(*problem, deeper).starved, -1);
  EXPECT_LT(simulated(deeper), 0.8 * simulated(with({})));
  const Strategy no_further = with({5, 4, 3, 2});  // no stage is further ahead of the next one
  is_near(no_further, 0.03);
  EXPECT_GE(rough_step(*problem, no_further).starved, 0);
  is_near(with({3, 2, 2, 1}), 0.02);
  is_near(with({1, 1, 1, 1}), 0.02);
  // On links that both directions fill, all in flight is GPipe, which uses one at a time.
  const ThreeStages three;
  Strategy all = three.strategy(Schedule::k1F1B);
  for (StageSpec& spec : all.stages) spec.in_flight = 16;
  EXPECT_GT(rough_step(*three.problem, all).seconds,
            1.5 * rough_step(*three.problem, three.strategy(Schedule::k1F1B)).seconds);
}

TEST(RoughStep, AllReducesOfStagesOnTheSameHostsShareTheirLinks) {
  const auto problem = problem_of(chain(2, 1024), fast_and_slow("16e9", "1e6"), 8);
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 1);
  strategy.stage_of[0] = strategy.stage_of[1] = 0;
  strategy.stages = {{{0, 2}, {4, 4}, false}, {{1, 3}, {4, 4}, false}};
  const RoughStep rough = rough_step(*problem, strategy);
  const double bytes = 1024 * 1024 * 4;  // of each stage, over a link that takes 1 s for a MB
  EXPECT_NEAR(rough.reduces, bytes / 1e6, 0.1 * bytes / 1e6);
  EXPECT_NEAR(rough.late, 2 * bytes / 1e6, 0.1 * bytes / 1e6);
}

/// Of the loss, over all devices.
double report_seconds(const Problem& problem) {
  return lone_seconds(problem.cluster,
                      report_all_reduce(problem.cluster, on_all(problem).stages[0].devices,
                                        problem.training.statistics_every));
}

TEST(RoughStep, AnAllReduceTakesWhatItsFastestAlgorithmTakes) {
  const auto problem = problem_of(chain(1, 2048),
                                  cluster_of("kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
                                             "host a gpu 4 nic=1e6\nhost b gpu 4 nic=1e6\n"),
                                  64);
  const Strategy strategy = on_all(*problem);
  const std::int64_t bytes = 2048 * 2048 * 4;
  const Cluster& cluster = problem->cluster;
  const std::vector<DeviceId>& devices = strategy.stages[0].devices;
  const double ring = lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kRing, bytes));
  const double least = all_reduce_seconds(cluster, devices, bytes);
  ASSERT_LT(least, 0.7 * ring);
  EXPECT_NEAR(rough_step(*problem, strategy).late, least, 0.01 * least);
}

TEST(RoughStep, GradientsAreSummedWhileOthersAreMade) {
  for (const double part : {0.5, 3.0}) {  // of the backward pass, that all sums take
    const auto at_speed = [](double nic) {
      return problem_of(
          chain(8, 1024),
          cluster_of("kind gpu memory=16e9 bandwidth=9e15 fp32=1e9 launch=0\n"
                     "host a gpu 1 nic=" +
                     std::to_string(nic) + "\nhost b gpu 1 nic=" + std::to_string(nic) + "\n"),
          16);
    };
    const auto any = at_speed(1e9);
    StageTimer timer(*any, all_ops(*any));
    const double backward = timer.seconds(0, 8) - timer.forward_seconds(0, 8);
    const std::int64_t bytes = 8 * 1024 * 1024 * 4;  // each rank sends as many
    const auto problem = at_speed(static_cast<double>(bytes) / (part * backward));
    const RoughStep rough = rough_step(*problem, on_all(*problem));
    const double sums = rough.reduces, late = rough.late - report_seconds(*problem);
    EXPECT_NEAR(sums, part * backward, 0.1 * sums);
    // The last of eight begins when the backward pass ends, or they follow the first one.
    const double expected = part < 1 ? sums / 8 : sums - backward * 7 / 8;
    EXPECT_NEAR(late, expected, 0.1 * expected) << part;
  }
}

TEST(RoughStep, SumsAreOfTheBytesThatTravel) {
  const auto reduces = [](std::optional<DType> wire_type) {
    const auto problem = problem_of(chain(2, 1024), fast_and_slow("16e9", "1e6"), 8, {}, wire_type);
    return rough_step(*problem, on_all(*problem)).reduces;
  };
  EXPECT_NEAR(reduces(DType::kFp16) / reduces({}), 0.5, 0.01);
}

TEST(RoughStep, TheLossIsSummedAfterTheGradients) {
  const auto problem = problem_of(chain(1, 16), fast_and_slow(), 4);
  const RoughStep rough = rough_step(*problem, on_all(*problem));
  EXPECT_GT(rough.late, rough.reduces + 0.9 * report_seconds(*problem));
}

/// Of two stages the first is the slowest by far, so that the last gradients wait there.
TEST(RoughStep, SumsOfALaterStageAreHiddenBehindASlowEarlierOne) {
  const auto problem = problem_of(
      chain(12, 2048),
      cluster_of("kind gpu memory=16e9 bandwidth=9e15 fp32=1e12\n"
                 "host a gpu 1 nic=2e10\nhost b gpu 1 nic=2e10\nhost c gpu 1 nic=2e10\n"),
      64);
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 0);
  for (std::size_t op = strategy.stage_of.size() - 4; op < strategy.stage_of.size(); ++op) {
    strategy.stage_of[op] = 1;
  }
  strategy.stages = {{{0}, {32}, false}, {{1, 2}, {16, 16}, false}};
  strategy.micro_batches = 2;
  const RoughStep rough = rough_step(*problem, strategy);
  EXPECT_GT(rough.reduces, 0.05 * rough.slowest_stage);
  EXPECT_LT(rough.late, 0.3 * rough.reduces);
}

TEST(RoughStep, UpdatesTakeTime) {
  const auto problem = problem_of(chain(1, 4096), fast_and_slow(), 1);
  Strategy strategy;
  strategy.stage_of.assign(problem->graph.ops.size(), 0);
  strategy.stages = {{{0}, {1}, false}};
  const RoughStep rough = rough_step(*problem, strategy);
  EXPECT_NEAR(rough.late, problem->costs.update_seconds(0, 4096 * 4096, 1), 1e-9);
}

TEST(RoughStep, IsNearTheSimulatedStep) {
  std::vector<double> off;
  for (std::uint64_t number = 0; number < 40; ++number) {
    const auto problem = search_problem(number);
    Evaluator evaluator(*problem);
    Rng rng = Rng(number).fork("strategies");
    for (int i = 0; i < 25; ++i) {
      Strategy strategy = random_strategy(rng, *problem);
      strategy.buckets.clear();
      const double simulated = evaluator.evaluate(strategy).step_seconds;
      off.push_back(std::abs(std::log(rough_step(*problem, strategy).seconds / simulated)));
    }
  }
  std::sort(off.begin(), off.end());
  EXPECT_LT(std::exp(off[off.size() / 2]), 1.02) << "half of the strategies";
  EXPECT_LT(std::exp(off[off.size() * 9 / 10]), 1.15) << "nine of ten";
}

/// What a model remembers of cuts, rings and reports changes no bit.
TEST(RoughStep, DependsOnNoStepBefore) {
  std::string cluster =
      "kind a memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "kind b memory=16e9 bandwidth=900e9 fp32=8e12\n";
  for (int host = 0; host < 10; ++host) {
    cluster += "host h" + std::to_string(host) + (host % 3 == 0 ? " a" : " b") + " 4 nic=1e9\n";
  }
  const auto problem = problem_of(chain(12, 256), cluster_of(cluster), 512);
  StageTimers timers(*problem);
  RoughModel used(*problem);
  Rng rng(5);
  std::vector<Strategy> strategies;
  for (int i = 0; i < 40; ++i) {
    strategies.push_back(random_strategy(rng, *problem));
    Strategy other = strategies.back();
    other.micro_batches = std::max<std::int64_t>(1, other.micro_batches / 2);
    strategies.push_back(std::move(other));
  }
  for (int again = 0; again < 2; ++again) {
    for (const Strategy& strategy : strategies) {
      const RoughStep own = used.step(strategy, timers.of(strategy));
      const RoughStep fresh = rough_step(*problem, strategy);
      EXPECT_EQ(own.seconds, fresh.seconds);
      EXPECT_EQ(own.slowest_cut, fresh.slowest_cut);
      EXPECT_EQ(own.late, fresh.late);
      EXPECT_EQ(own.busy, fresh.busy);
    }
  }
}

TEST(RoughStep, OfInterleavedStagesIsNearTheSimulatedStep) {
  std::vector<double> off;
  for (std::uint64_t number = 0; number < 40; ++number) {
    const auto problem = search_problem(number);
    if (problem->cluster.device_count() < 2) continue;
    Evaluator evaluator(*problem);
    Rng rng = Rng(number).fork("interleaved");
    for (int i = 0; i < 25; ++i) {
      std::optional<Strategy> strategy = random_interleaved(rng, *problem);
      if (!strategy) continue;
      strategy->buckets.clear();
      const double simulated = evaluator.evaluate(*strategy).step_seconds;
      off.push_back(std::abs(std::log(rough_step(*problem, *strategy).seconds / simulated)));
    }
  }
  ASSERT_GT(off.size(), 300U);
  std::sort(off.begin(), off.end());
  const double half = std::exp(off[off.size() / 2]), most = std::exp(off[off.size() * 9 / 10]);
  std::printf(
      "of %zu steps, half are within %.1f%% of the simulated ones, nine of ten within "
      "%.1f%%\n",
      off.size(), 100 * (half - 1), 100 * (most - 1));
  EXPECT_LT(half, 1.13) << "half of the strategies";
  EXPECT_LT(most, 1.5) << "nine of ten";
}

/// Equal stages, links that take no time: the bubble of its authors (Narayanan et al., SC 2021).
TEST(RoughStep, OfInterleavedStagesHasTheBubbleOfItsAuthors) {
  const auto problem = problem_of(chain(12, 1024),
                                  cluster_of("kind gpu memory=16e9 bandwidth=9e15 fp32=1e12\n"
                                             "host a gpu 3 bandwidth=1e18 latency=0\n"),
                                  96);
  for (const std::int64_t micro_batches : {2, 3, 8, 12}) {
    Strategy strategy;
    strategy.schedule = Schedule::kInterleaved;
    strategy.micro_batches = micro_batches;
    std::vector<int> stage_of_block;
    for (int b = 0; b < problem->blocks.size(); ++b) {
      stage_of_block.push_back(b * 6 / problem->blocks.size());
    }
    strategy.stage_of = stage_of_ops(problem->blocks, stage_of_block);
    for (int s = 0; s < 6; ++s) strategy.stages.push_back({{s % 3}, {96 / micro_batches}});
    const double simulated = Evaluator(*problem).evaluate(strategy).step_seconds;
    EXPECT_NEAR(rough_step(*problem, strategy).seconds / simulated, 1, 0.02) << micro_batches;
  }
}

}  // namespace
}  // namespace agpcs::testing
