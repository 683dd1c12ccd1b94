// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/plan_against.h"
#include "planner/evaluate/evaluate.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/seeder.h"
#include "tests/planner/problem/problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <string>

namespace agpcs::testing {
namespace {

std::vector<Strategy> seeds_of(std::string_view name, const Problem& problem,
                               std::uint64_t seed = 0) {
  const auto seeder = make_seeder(name);
  EXPECT_TRUE(seeder.ok());
  auto strategies = (*seeder)->seed(problem, Rng(seed));
  EXPECT_TRUE(strategies.ok()) << strategies.status().message();
  return std::move(*strategies);
}

/// A diamond in the middle, a skip connection across it, and a tensor of fixed size used late.
Graph branching() {
  return graph_of(R"(
      input x [n,256]
      input labels int64[n]
      input mask [16]
      parameter w0 [256,256]
      parameter w1 [256,256]
      parameter w2 [256,256]
      parameter w3 [256,256]
      parameter w4 [256,16]
      m = Neg(mask) [16]
      h0 = MatMul(x, w0) [n,256]
      a0 = Relu(h0) [n,256]
      h1 = MatMul(a0, w1) [n,256]
      h2 = MatMul(a0, w2) [n,256]
      j = Add(h1, h2) [n,256]
      h3 = MatMul(j, w3) [n,256]
      s = Add(h3, a0) [n,256]
      h4 = MatMul(s, w4) [n,16]
      y = Add(h4, m) [n,16]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
}

TEST(Seeders, EveryCandidateVerifiesAndBecomesAPlanThatVerifies) {
  ProblemOptions options;
  options.choose_teams = true;
  for (const bool branches : {false, true}) {
    const auto problem =
        problem_of(branches ? branching() : chain(12), fast_and_slow(), 48, options);
    for (const SeederEntry& entry : named_seeders()) {
      const std::vector<Strategy> strategies = seeds_of(entry.name, *problem);
      // The model fits a device, and links are too slow for a team to divide an operator.
      EXPECT_EQ(strategies.empty(), entry.name == "even" || entry.name == "teams") << entry.name;
      for (const Strategy& strategy : strategies) {
        EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 48).message(), "");
        const auto evaluated = evaluate(*problem, strategy, MadeBy());
        ASSERT_TRUE(evaluated.ok()) << entry.name << ": " << evaluated.status().message();
        EXPECT_EQ(verify_plan(evaluated->plan).message(), "") << entry.name;
      }
    }
  }
}

TEST(Seeders, DeepPipelinesWithSkipsVerify) {
  std::string text = "input x [n,64]\ninput labels int64[n]\n";
  std::string last = "x";
  for (int i = 0; i < 16; ++i) {
    const std::string n = std::to_string(i);
    text += "parameter w" + n + " [64,64]\nh" + n + " = MatMul(" + last + ", w" + n +
            ") [n,64]\ns" + n + " = Add(h" + n + ", " + (i < 2 ? "h" + n : "s0") + ") [n,64]\n";
    last = "s" + n;
  }
  text += "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last + "\nloss l\n";
  const auto problem =
      problem_of(graph_of(text), cluster_of("kind x fp32=1e12\nhost a x 16\n"), 64);
  for (const char* name : {"degree", "metis", "linear"}) {
    for (const Strategy& strategy : seeds_of(name, *problem)) {
      const auto evaluated = evaluate(*problem, strategy, MadeBy());
      ASSERT_TRUE(evaluated.ok()) << name << ": " << evaluated.status().message();
      EXPECT_EQ(verify_plan(evaluated->plan).message(), "") << name;
    }
  }
}

TEST(Seeders, TheSameSeedGivesTheSameCandidates) {
  const auto problem = problem_of(branching(), fast_and_slow(), 48);
  for (const SeederEntry& entry : named_seeders()) {
    std::string texts[2];
    for (std::string& text : texts) {
      for (const Strategy& strategy : seeds_of(entry.name, *problem, 5)) {
        text += print_strategy(strategy, problem->graph, problem->cluster);
      }
    }
    EXPECT_EQ(texts[0], texts[1]) << entry.name;
  }
}

TEST(Seeders, PipelinesNeedTwoDevices) {
  const auto problem = problem_of(chain(3), cluster_of("kind x fp32=1e12\nhost a x 1\n"), 8);
  EXPECT_TRUE(seeds_of("metis", *problem).empty());
  EXPECT_EQ(seeds_of("data_parallel", *problem).size(), 1u);
}

TEST(Seeders, AnUnknownNameIsAUsageError) {
  const Status status = make_seeder("mettis").status();
  EXPECT_EQ(status.code(), StatusCode::kUsage);
  EXPECT_EQ(status.message(),
            "unknown seeder 'mettis'\n"
            "  hint: did you mean 'metis'? seeders: data_parallel, metis, linear, even, degree, "
            "teams, equal");
}

TEST(Seeders, EqualRunsOnlyWhereItIsAskedFor) {
  for (const SeederEntry& entry : seeders()) EXPECT_NE(entry.name, "equal");
  EXPECT_EQ(named_seeders().size(), seeders().size() + 1);
}

TEST(EqualSeeder, GivesEveryDeviceTheSameNumberOfSamples) {
  const auto problem = problem_of(chain(1), fast_and_slow(), 10);
  const std::vector<Strategy> strategies = seeds_of("equal", *problem);
  ASSERT_EQ(strategies.size(), 1u);
  EXPECT_EQ(print_strategy(strategies[0], problem->graph, problem->cluster),
            "strategy micro-batches=1 schedule=1f1b\n"
            "stage 0: a/0=3 a/1=3 b/0=2 b/1=2\n  h0\n  a0\n  l\n"
            "bucket stage=0 algorithm=hierarchical: w0\n");
}

TEST(DegreeSeeder, CutsEqualDegreeOverEqualDevices) {
  ProblemOptions options;
  options.micro_batches = 4;
  const auto problem = problem_of(chain(4), fast_and_slow(), 8, options);
  const std::vector<Strategy> strategies = seeds_of("degree", *problem);
  ASSERT_EQ(strategies.size(), 1u);
  EXPECT_EQ(print_strategy(strategies[0], problem->graph, problem->cluster),
            "strategy micro-batches=4 schedule=1f1b\n"
            "stage 0: a/0=2\n  h0\n  a0\n"
            "stage 1: a/1=2\n  h1\n  a1\n"
            "stage 2: b/0=2\n  h2\n  a2\n"
            "stage 3: b/1=2\n  h3\n  a3\n  l\n");
}

TEST(DataParallelSeeder, TakesTheFewestMicroBatchesThatFit) {
  const auto roomy = problem_of(chain(8, 1024), fast_and_slow(), 4096);
  EXPECT_EQ(seeds_of("data_parallel", *roomy).front().micro_batches, 1);
  const auto tight = problem_of(chain(8, 1024), fast_and_slow("130e6"), 4096);
  const Strategy strategy = seeds_of("data_parallel", *tight).front();
  EXPECT_GT(strategy.micro_batches, 1);
  EXPECT_TRUE(evaluate(*tight, strategy, MadeBy()).ok());
  Strategy fewer = strategy;
  fewer.micro_batches /= 2;
  for (std::int64_t& share : fewer.stages[0].shares) share *= 2;
  EXPECT_EQ(evaluate(*tight, fewer, MadeBy()).status().code(), StatusCode::kInfeasible);
}

TEST(DataParallelSeeder, TriesTheNextNumbersOfMicroBatchesWhereTheFewestRecompute) {
  const auto numbers_with = [](std::int64_t asked) {
    ProblemOptions options;
    options.micro_batches = asked;
    const auto tight = problem_of(chain(32), fast_and_slow("60e6"), 65536, options);
    std::set<std::int64_t> numbers;  // on all devices
    for (const Strategy& strategy : seeds_of("data_parallel", *tight)) {
      const StageSpec& stage = strategy.stages[0];
      if (stage.recompute && stage.devices.size() == 4) numbers.insert(strategy.micro_batches);
    }
    return numbers;
  };
  const std::set<std::int64_t> numbers = numbers_with(0);
  ASSERT_GE(numbers.size(), 2U);
  EXPECT_EQ(numbers_with(*numbers.begin()), std::set<std::int64_t>{*numbers.begin()});
}

Cluster two_equal(std::int64_t memory) {
  return cluster_of("kind x memory=" + std::to_string(memory) +
                    " bandwidth=900e9 fp32=15e12\nhost a x 1 nic=3e9\nhost b x 1 nic=3e9\n");
}

TEST(LinearSeeder, AsksForLessOfTheMemoryWhereItsPlansLackIt) {
  ProblemOptions options;  // numbers at which no plan that may fill all of a device fits
  options.micro_batches = 4;
  const auto long_chain = problem_of(chain(12), fast_and_slow("26e6"), 8192, options);
  const auto branches = problem_of(branching(), fast_and_slow("8e6"), 8192);
  for (const Problem* problem : {long_chain.get(), branches.get()}) {
    bool any = false;
    for (const Strategy& strategy : seeds_of("linear", *problem)) {
      any = any || evaluate(*problem, strategy, MadeBy()).ok();
    }
    EXPECT_TRUE(any) << problem->graph.name;
  }
}

TEST(PipelinesOfTwoStages, AreAsFastAsTheBestOfAllCuts) {
  const Cluster cluster = cluster_of(
      "kind fast memory=1e9 bandwidth=900e9 fp32=15e12\n"
      "kind slow memory=1e9 bandwidth=900e9 fp32=2e12\n"
      "host a fast 2 nic=20e9\nhost b slow 2 nic=20e9\n");
  const auto problem = problem_of(chain(12), cluster, 8192);
  Evaluator evaluator(*problem);
  double least = std::numeric_limits<double>::infinity();
  std::size_t least_behind = 0;
  for (std::size_t layers = 1; layers < 12; ++layers) {
    const Strategy strategy =
        strategy_of("micro-batches 2\nstage a/0=2048 a/1=2048 : h0..a" +
                        std::to_string(layers - 1) + "\nstage b/0=2048 b/1=2048 : *\n",
                    problem->graph, cluster);
    const double seconds = evaluator.evaluate(strategy).step_seconds;
    if (seconds >= least) continue;
    least = seconds;
    least_behind = 12 - layers;
  }
  EXPECT_LT(least_behind, 3U) << "the second stage is to be far shorter than the first";
  const auto found = pipelines_of_two_stages(*problem, evaluator);
  ASSERT_TRUE(found.ok()) << found.status().message();
  double best = std::numeric_limits<double>::infinity();
  for (const Strategy& strategy : *found) {
    EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 8192).message(), "");
    if (strategy.micro_batches == 2) {
      best = std::min(best, evaluator.evaluate(strategy).step_seconds);
    }
  }
  EXPECT_LE(best, 1.005 * least);
}

TEST(Seeders, RecomputeWhereNothingElseFits) {
  ProblemOptions options;
  options.micro_batches = 8;
  const std::int64_t roomy = 16'000'000'000;
  const auto wide = problem_of(chain(24), two_equal(roomy), 2048, options);
  std::int64_t least = roomy, least_recomputing = roomy;
  Evaluator evaluator(*wide);
  for (const char* name : {"data_parallel", "metis", "linear", "degree"}) {
    for (Strategy strategy : seeds_of(name, *wide)) {
      least = std::min(least, roomy + evaluator.lacking(strategy));
      for (StageSpec& stage : strategy.stages) stage.recompute = kWholeStage;
      fit_in_flight(strategy);  // a stage that recomputes parts no backward passes
      least_recomputing = std::min(least_recomputing, roomy + evaluator.lacking(strategy));
    }
  }
  ASSERT_LT(least_recomputing, least);
  const auto tight =
      problem_of(chain(24), two_equal((least + least_recomputing) / 2), 2048, options);
  bool found = false;
  for (const char* name : {"metis", "linear"}) {
    for (const Strategy& strategy : seeds_of(name, *tight)) {
      found = found || evaluate(*tight, strategy, MadeBy()).ok();
    }
  }
  EXPECT_TRUE(found);
}

TEST(FitMemory, GivesDevicesWithLittleMemoryFewerSamples) {
  const Cluster cluster = cluster_of(
      "kind large memory=1e9 bandwidth=900e9 fp32=15e12\n"
      "kind small memory=25e6 bandwidth=900e9 fp32=15e12\n"
      "host a large 2 nic=3e9\nhost b small 2 nic=3e9\n");
  ProblemOptions options;
  options.micro_batches = 1;
  const auto problem = problem_of(chain(4), cluster, 16384, options);
  const auto plain = plain_data_parallelism(*problem);
  ASSERT_TRUE(plain.ok());
  Evaluator evaluator(*problem);
  ASSERT_GT(evaluator.lacking(*plain), 0);
  Strategy strategy = *plain;
  ASSERT_TRUE(fit_memory(*problem, evaluator, strategy));
  EXPECT_LE(evaluator.lacking(strategy), 0);
  const StageSpec& stage = strategy.stages[0];
  ASSERT_EQ(stage.shares.size(), 4u);
  EXPECT_LT(stage.shares[2], stage.shares[0]);
  EXPECT_EQ(stage.shares[2], stage.shares[3]);
  EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 16384).message(), "");
}

/// Four devices that hold the parameters and gradients of `chain(8, 1024)`, 67 MB, and a part of
/// the 67 MB of Adam's moments.
std::unique_ptr<const Problem> with_large_state(StateLevel most_divided,
                                                const std::string& memory = "105e6") {
  Training training;
  training.batch = 48;
  training.optimizer.kind = OptimizerKind::kAdam;
  ProblemOptions options;
  options.most_divided = most_divided;
  auto problem = Problem::make(chain(8, 1024), fast_and_slow(memory), training, options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return *std::move(problem);
}

TEST(FitMemory, DividesTheOptimizersStateAmongDevices) {
  const auto problem = with_large_state(StateLevel::kGradients);
  Evaluator evaluator(*problem);
  Strategy strategy = on_all(*problem);
  EXPECT_GT(evaluator.lacking(strategy), 0);
  ASSERT_TRUE(fit_memory(*problem, evaluator, strategy));
  EXPECT_EQ(strategy.stages[0].state, StateLevel::kOptimizer);
  EXPECT_FALSE(strategy.stages[0].recompute);
  EXPECT_LE(evaluator.lacking(strategy), 0);
  const auto evaluated = evaluate(*problem, strategy, MadeBy());
  ASSERT_TRUE(evaluated.ok()) << evaluated.status().message();
  EXPECT_EQ(verify_plan(evaluated->plan).message(), "");
  for (const PlanBucket& bucket : evaluated->plan.buckets) {
    ASSERT_EQ(bucket.parts.size(), 4U);
    EXPECT_GT(bucket.parts[0], 2 * bucket.parts[2]);  // three times the memory bandwidth
  }
}

TEST(FitMemory, DividesGradientsWhereDevicesLackMemoryForThem) {
  // With a quarter of the moments, devices need 84 MB; with one of the gradients, too, 59 MB and
  // two buckets of 4 MB.
  const auto problem = with_large_state(StateLevel::kGradients, "74e6");
  Evaluator evaluator(*problem);
  Strategy strategy = on_all(*problem);
  ASSERT_TRUE(fit_memory(*problem, evaluator, strategy));
  EXPECT_EQ(strategy.stages[0].state, StateLevel::kGradients);
  const auto evaluated = evaluate(*problem, strategy, MadeBy());
  ASSERT_TRUE(evaluated.ok()) << evaluated.status().message();
  EXPECT_EQ(evaluated->plan.buckets.size(), 8U);  // each of them more than a sixteenth
  EXPECT_EQ(verify_plan_against(evaluated->plan, problem->graph, problem->cluster).message(), "");
  const auto less = with_large_state(StateLevel::kOptimizer, "74e6");
  Evaluator of_less(*less);
  Strategy unhelped = on_all(*less);
  EXPECT_FALSE(fit_memory(*less, of_less, unhelped));
}

TEST(FitMemory, DividesParametersWhereDevicesLackMemoryForThem) {
  // With a quarter of moments and gradients, devices need 67 MB and two buckets of 4 MB; with one
  // of the parameters, too, 34 MB and four or five buckets.
  const auto problem = with_large_state(StateLevel::kParameters, "62e6");
  Evaluator evaluator(*problem);
  Strategy strategy = on_all(*problem);
  EXPECT_FALSE(fit_memory(*problem, evaluator, strategy));
  ASSERT_TRUE(fit_memory(*problem, evaluator, strategy, StateLevel::kParameters));
  EXPECT_EQ(strategy.stages[0].state, StateLevel::kParameters);
  const auto evaluated = evaluate(*problem, strategy, MadeBy());
  ASSERT_TRUE(evaluated.ok()) << evaluated.status().message();
  EXPECT_EQ(verify_plan_against(evaluated->plan, problem->graph, problem->cluster).message(), "");
}

TEST(FitMemory, KeepsStateWholeWhereItMayNotDivideIt) {
  const auto problem = with_large_state(StateLevel::kWhole);
  Evaluator evaluator(*problem);
  Strategy strategy = on_all(*problem);
  EXPECT_FALSE(fit_memory(*problem, evaluator, strategy));
  EXPECT_EQ(strategy.stages[0].state, StateLevel::kWhole);
}

/// Four layers, one a stage, on equal devices of `memory` bytes.
std::unique_ptr<const Problem> four_stages(std::int64_t memory, bool choose_in_flight = true) {
  ProblemOptions options;
  options.micro_batches = 8;
  options.choose_in_flight = choose_in_flight;
  options.part_backward = false;
  const std::string text = std::to_string(memory);
  return problem_of(
      chain(4),
      cluster_of("kind gpu memory=" + text + " bandwidth=900e9 fp32=15e12\nhost a gpu 4\n"), 4096,
      options);
}

Strategy one_layer_each(const Problem& problem) {
  return strategy_of(
      "micro-batches 8\nstage a/0=512 : h0 a0\nstage a/1=512 : h1 a1\nstage a/2=512 : h2 a2\n"
      "stage a/3=512 : *\n",
      problem.graph, problem.cluster);
}

TEST(FitMemory, LetsStagesHaveFewerMicroBatchesInFlight) {
  const std::int64_t roomy = 1'000'000'000;
  const auto bytes_with = [&](std::int64_t in_flight) {
    const auto problem = four_stages(roomy);
    Strategy strategy = one_layer_each(*problem);
    strategy.buckets.clear();
    for (StageSpec& stage : strategy.stages) {
      stage.in_flight = in_flight;
      stage.recompute = kWholeStage;
    }
    fit_in_flight(strategy);
    return roomy + Evaluator(*problem).lacking(strategy);
  };
  ASSERT_LT(bytes_with(1), bytes_with(2));
  ASSERT_LT(bytes_with(2), bytes_with(3));
  for (const std::int64_t most : {1, 2}) {
    const auto tight = four_stages(bytes_with(most));
    Evaluator evaluator(*tight);
    Strategy strategy = one_layer_each(*tight);
    strategy.buckets.clear();
    ASSERT_FALSE(fit_memory(*tight, evaluator, strategy));
    ASSERT_TRUE(fit_with_fewer_in_flight(*tight, evaluator, strategy));
    EXPECT_LE(evaluator.lacking(strategy), 0);
    EXPECT_EQ(most_in_flight(strategy, 0), most);
    EXPECT_EQ(verify_strategy(strategy, tight->graph, tight->cluster, 4096).message(), "");
  }
  const auto too_tight = four_stages(bytes_with(1) - 1);
  Evaluator evaluator(*too_tight);
  const Strategy before = one_layer_each(*too_tight);
  Strategy strategy = before;
  EXPECT_FALSE(fit_with_fewer_in_flight(*too_tight, evaluator, strategy));
  EXPECT_EQ(strategy, before);
  const auto may_not = four_stages(bytes_with(1), false);
  Evaluator other(*may_not);
  EXPECT_FALSE(fit_with_fewer_in_flight(*may_not, other, strategy));
}

TEST(FitMemory, LeavesAStrategyAloneThatItCannotHelp) {
  const auto problem = problem_of(chain(4, 1024), fast_and_slow("10e6"), 64);
  Evaluator evaluator(*problem);
  Strategy strategy = *plain_data_parallelism(*problem);
  const std::string before = print_strategy(strategy, problem->graph, problem->cluster);
  EXPECT_FALSE(fit_memory(*problem, evaluator, strategy));
  EXPECT_EQ(print_strategy(strategy, problem->graph, problem->cluster), before);
}

TEST(PlainDataParallelism, HasEqualSharesOnAllDevices) {
  const auto problem = problem_of(chain(4), fast_and_slow(), 64);
  const auto strategy = plain_data_parallelism(*problem);
  ASSERT_TRUE(strategy.ok());
  EXPECT_EQ(strategy->stages.at(0).devices, (std::vector<DeviceId>{0, 1, 2, 3}));
  EXPECT_EQ(strategy->stages.at(0).shares, (std::vector<std::int64_t>{16, 16, 16, 16}));
}

/// Twelve products of 16 MB of parameters each, whose state (64 MB a product under Adam) needs
/// three devices of 300 MB or more of them. The last product may be wider.
std::unique_ptr<const Problem> deep(const std::string& cluster, int last_width = 2048) {
  std::string text = "input x [n,2048]\ninput labels int64[n]\n";
  std::string last = "x";
  for (int i = 0; i < 12; ++i) {
    const std::string n = std::to_string(i);
    const std::string width = std::to_string(i + 1 < 12 ? 2048 : last_width);
    text += "parameter w" + n + " [2048," + width + "]\nh" + n + " = MatMul(" + last + ", w" + n +
            ") [n," + width + "]\n";
    last = "h" + n;
  }
  text += "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last + "\nloss l\n";
  Graph graph = graph_of(text);
  Training training = training_of(graph, 37);
  training.optimizer.kind = OptimizerKind::kAdam;
  auto problem = Problem::make(std::move(graph), cluster_of(cluster), training);
  EXPECT_TRUE(problem.ok());
  return *std::move(problem);
}

TEST(EvenSeeder, FindsAPipelineOnTheLargeDevicesWhateverElseThereIs) {
  const std::string large = "kind large memory=300e6 fp32=1e12\nhost a large 4\n";
  const std::string small = "kind small memory=40e6 fp32=9e12\nhost b small 8\nhost c small 8\n";
  for (const std::string& cluster : {large, large + small, small + large}) {
    const auto problem = deep(cluster);
    const std::vector<Strategy> strategies = seeds_of("even", *problem);
    ASSERT_FALSE(strategies.empty()) << cluster;
    for (const Strategy& strategy : strategies) {
      EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 37).message(), "");
      EXPECT_TRUE(evaluate(*problem, strategy, MadeBy()).ok()) << cluster;
      EXPECT_GE(strategy.stages.size(), 3u) << cluster;
    }
  }
}

TEST(EvenSeeder, GivesTheLargestStageTheOnlyDeviceThatHasRoomForIt) {
  // The last product needs 335 MB, and two of the others 151 MB. The large device comes first both
  // by memory and by speed, but must have the last stage.
  const std::string small = "kind small memory=160e6 fp32=1e12\nhost b small 6\n";
  const std::string large = "kind large memory=345e6 fp32=9e12\nhost a large 1\n";
  for (const std::string& cluster : {small + large, large + small}) {
    const auto problem = deep(cluster, 8192);
    bool any = false;
    for (const Strategy& strategy : seeds_of("even", *problem)) {
      EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 37).message(), "");
      any = any || evaluate(*problem, strategy, MadeBy()).ok();
    }
    EXPECT_TRUE(any) << cluster;
  }
}

TEST(EvenSeeder, ReturnsThePipelineThatLacksLeastWhereNothingFits) {
  const auto problem = deep("kind small memory=40e6 fp32=1e12\nhost a small 16\n");
  const std::vector<Strategy> strategies = seeds_of("even", *problem);
  ASSERT_EQ(strategies.size(), 1u);
  EXPECT_EQ(verify_strategy(strategies.front(), problem->graph, problem->cluster, 37).message(),
            "");
  EXPECT_GE(strategies.front().stages.size(), 8u);
  for (const StageSpec& stage : strategies.front().stages) EXPECT_TRUE(stage.recompute);
}

}  // namespace
}  // namespace agpcs::testing
