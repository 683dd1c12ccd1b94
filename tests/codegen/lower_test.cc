// SPDX-License-Identifier: Apache-2.0
#include "codegen/lower.h"

#include "ir/base/rng.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/plan_against.h"
#include "tests/codegen/test_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

/// All lines that start with `word`, with the indented ones below each.
std::string sections(const Plan& plan, std::string_view word) {
  std::string result;
  bool inside = false;
  for (const std::string& line : split(print_plan(plan), '\n')) {
    if (line[0] != ' ') inside = line.substr(0, word.size()) == word;
    if (inside) result += line + "\n";
  }
  return result;
}

TEST(Lower, ReplicasThatDivideTheirGradientsScatterThemAfterEachMicroBatch) {
  const Plan plan = plan_of_strategy(strategies()[strategies().size() - 2].second);
  EXPECT_EQ(verify_plan(plan).message(), "");
  const std::string program = section(plan, "program s1");
  EXPECT_EQ(program.substr(program.find("  backward mb=2")),
            "  backward mb=2 after=send_gradient:c0:0\n"
            "  reduce_scatter b2 mb=2 after=gradients:b2:2\n"
            "  reduce_scatter b3 mb=2 after=gradients:b3:2\n"
            "  send_gradient c0 mb=2 after=backward:2\n"
            "  forward mb=3 after=recv:c0:3\n"
            "  backward mb=3 after=send_gradient:c0:1\n"
            "  reduce_scatter b2 mb=3 after=gradients:b2:3\n"
            "  reduce_scatter b3 mb=3 after=gradients:b3:3\n"
            "  send_gradient c0 mb=3 after=backward:3\n"
            "  update after=reduce_scatter:b3:3\n"
            "  all_gather b2 after=update\n"
            "  all_gather b3 after=update\n"
            "  report after=backward:3\n");
}

TEST(Lower, ReplicasThatDivideTheirStateScatterUpdateAndGather) {
  const Plan plan = plan_of_strategy(strategies().back().second);
  EXPECT_EQ(sections(plan, "bucket"),
            "bucket b0 stage=s0 algorithm=ring type=fp32 state=optimizer parts=192x2 gradients=2 "
            "elements=384\n"
            "  gradient w1 elements=256\n"
            "  gradient w0 elements=128\n"
            "bucket b1 stage=s1 algorithm=ring type=fp32 state=optimizer parts=160x2 gradients=2 "
            "elements=320\n"
            "  gradient w3 elements=64\n"
            "  gradient w2 elements=256\n");
  const std::string program = section(plan, "program s0");
  EXPECT_EQ(program.substr(program.find("  reduce_scatter")),
            "  reduce_scatter b0 after=gradients:b0:1\n"
            "  update after=reduce_scatter:b0\n"
            "  all_gather b0 after=update\n"
            "  report after=backward:1\n");
}

TEST(Lower, APipelineStageAlternatesForwardAndBackwardAndReceivesOneAhead) {
  const Plan plan = plan_of_strategy("micro-batches 4\nstage a/0=4 : h0..a1\nstage b/0=4 : *\n");
  EXPECT_EQ(section(plan, "program s0"),
            "program s0\n"
            "  forward mb=0\n"
            "  send c0 mb=0 after=forward:0\n"
            "  recv_gradient c0 mb=0 after=forward:0\n"
            "  forward mb=1\n"
            "  send c0 mb=1 after=forward:1\n"
            "  backward mb=0 after=recv_gradient:c0:0\n"
            "  recv_gradient c0 mb=1 after=backward:0\n"
            "  forward mb=2\n"
            "  send c0 mb=2 after=forward:2\n"
            "  backward mb=1 after=recv_gradient:c0:1\n"
            "  recv_gradient c0 mb=2 after=backward:1\n"
            "  forward mb=3\n"
            "  send c0 mb=3 after=forward:3\n"
            "  recv_gradient c0 mb=3 after=forward:3\n"
            "  backward mb=2 after=recv_gradient:c0:2\n"
            "  backward mb=3 after=recv_gradient:c0:3\n"
            "  update\n"
            "  report after=backward:3\n");
  EXPECT_EQ(section(plan, "program s1"),
            "program s1\n"
            "  recv c0 mb=0\n"
            "  forward mb=0 after=recv:c0:0\n"
            "  recv c0 mb=1 after=forward:0\n"
            "  backward mb=0\n"
            "  send_gradient c0 mb=0 after=backward:0\n"
            "  forward mb=1 after=recv:c0:1\n"
            "  recv c0 mb=2 after=forward:1\n"
            "  backward mb=1\n"
            "  send_gradient c0 mb=1 after=backward:1\n"
            "  forward mb=2 after=recv:c0:2\n"
            "  recv c0 mb=3 after=forward:2\n"
            "  backward mb=2 after=send_gradient:c0:0\n"
            "  send_gradient c0 mb=2 after=backward:2\n"
            "  forward mb=3 after=recv:c0:3\n"
            "  backward mb=3 after=send_gradient:c0:1\n"
            "  send_gradient c0 mb=3 after=backward:3\n"
            "  update\n"
            "  report after=backward:3\n");
}

TEST(Lower, GPipeRunsAllForwardsFirst) {
  const Plan plan =
      plan_of_strategy("micro-batches 2 gpipe\nstage a/0=8 : h0..a1\nstage b/0=8 : *\n");
  EXPECT_EQ(section(plan, "program s1"),
            "program s1\n"
            "  recv c0 mb=0\n"
            "  recv c0 mb=1\n"
            "  forward mb=0 after=recv:c0:0\n"
            "  forward mb=1 after=recv:c0:1\n"
            "  backward mb=0\n"
            "  send_gradient c0 mb=0 after=backward:0\n"
            "  backward mb=1\n"
            "  send_gradient c0 mb=1 after=backward:1\n"
            "  update\n"
            "  report after=backward:1\n");
}

TEST(Lower, StagesReduceWhatTheyShareAfterTheirOwn) {
  const Plan plan = plan_of(tied_model(), two_hosts(), std::string(kTiedStages), 16);
  EXPECT_EQ(sections(plan, "bucket"),
            "bucket b0 stage=s0 algorithm=ring type=fp32 gradients=1 elements=64\n"
            "  gradient w elements=64\n"
            "bucket b1 stage=s0 shared-with=s1 algorithm=ring type=fp32 gradients=1 elements=128\n"
            "  gradient table elements=128\n");
  const std::string end =
      "  all_reduce b1 after=gradients:b1:1\n"
      "  update after=all_reduce:b1\n"
      "  report after=backward:1\n";
  EXPECT_THAT(section(plan, "program s0"), ::testing::EndsWith("recv_gradient:c0:1\n" + end));
  EXPECT_THAT(section(plan, "program s1"),
              ::testing::EndsWith("send_gradient c0 mb=1 after=backward:1\n" + end));
  const Result<Plan> read = parse_plan(print_plan(plan), "tied.plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_plan(*read), print_plan(plan));
}

TEST(Lower, ReplicasReduceTheirBucketsAsTheLastBackwardFillsThem) {
  const Plan plan = plan_of_strategy(
      "micro-batches 1\nstage a/0=12 b/1=4 : *\nbucket 0 ring w3 w2\nbucket 0 hierarchical w1 "
      "w0\n");
  EXPECT_EQ(section(plan, "program s0"),
            "program s0\n"
            "  forward mb=0\n"
            "  backward mb=0\n"
            "  all_reduce b0 after=gradients:b0:0\n"
            "  all_reduce b1 after=gradients:b1:0\n"
            "  update after=all_reduce:b1\n"
            "  report after=backward:0\n");
  EXPECT_EQ(sections(plan, "bucket"),
            "bucket b0 stage=s0 algorithm=ring type=fp32 gradients=2 elements=320\n"
            "  gradient w3 elements=64\n"
            "  gradient w2 elements=256\n"
            "bucket b1 stage=s0 algorithm=hierarchical type=fp32 gradients=2 elements=384\n"
            "  gradient w1 elements=256\n"
            "  gradient w0 elements=128\n");
}

TEST(Lower, RanksFollowTheClusterAmongTheDevicesInUse) {
  const Plan plan =
      plan_of_strategy("micro-batches 4\nstage b/1=4 : h0..a1\nstage a/1=3 b/0=1 : *\n");
  EXPECT_EQ(sections(plan, "stage"),
            "stage s0 ranks=2 devices=b/1 samples=4 recompute=no operators=4\n"
            "  operators h0 .. a1 count=4\n"
            "stage s1 ranks=0-1 devices=a/1,b/0 samples=3,1 recompute=no operators=5\n"
            "  operators h2 .. l count=5\n");
}

TEST(Lower, DevicesWithoutWorkAreIdleRanksWhereAllHaveOne) {
  const Graph graph = skip_model();
  const Strategy strategy = strategy_of("micro-batches 4\nstage a/1=4 : *\n", graph, two_hosts());
  const Result<Plan> plan = lower(graph, two_hosts(), training_of(graph, 16), strategy,
                                  {"0.1.0", 0, "t", "none"}, Ranks::kAll);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(verify_plan_against(*plan, graph, two_hosts()).message(), "");
  EXPECT_EQ(plan->rank_count(), two_hosts().device_count());
  EXPECT_EQ(plan->stages[0].ranks, std::vector<int>{1});
  EXPECT_TRUE(plan->stages[1].idle());
  EXPECT_EQ(plan->stages[1].devices.front(), "a/0");
}

TEST(Lower, ATensorGoesStraightToEveryLaterStageThatReadsIt) {
  const Plan plan = plan_of_strategy(strategies()[3].second);
  EXPECT_EQ(sections(plan, "cut"),
            "cut c0 from=s0 to=s1 tensors=1\n"
            "  tensor a0 type=fp32 shape=samplesx16 gradient=yes\n"
            "cut c1 from=s0 to=s3 tensors=1\n"
            "  tensor a0 type=fp32 shape=samplesx16 gradient=yes\n"
            "cut c2 from=s1 to=s2 tensors=1\n"
            "  tensor a1 type=fp32 shape=samplesx16 gradient=yes\n"
            "cut c3 from=s2 to=s3 tensors=1\n"
            "  tensor a2 type=fp32 shape=samplesx16 gradient=yes\n");
}

/// Stage 1 reads a mask, which has no gradient, and a table that no sample is in.
Graph graph_with_odd_cuts() {
  return graph_of(R"(
      input x [n,8]
      parameter w [8,8]
      parameter v [8,8]
      parameter u [4,8]
      table = MatMul(u, w) [4,8]
      h = MatMul(x, w) [n,8]
      mask = Greater(x, h) bool[n,8]
      s = ReduceMean(table) []
      y = Where(mask, x, x) [n,8]
      z = Einsum(y, v, table, s) [n,4]
      l = ReduceMean(z) []
      outputs z
      loss l
  )");
}

TEST(Lower, CutsSayWhichTensorsHaveSamplesAndGradients) {
  const Plan plan = plan_of(graph_with_odd_cuts(), two_hosts(),
                            "micro-batches 4\nstage a/0=4 : table..s\nstage b/0=4 : *\n", 16);
  EXPECT_EQ(sections(plan, "cut"),
            "cut c0 from=s0 to=s1 tensors=3\n"
            "  tensor table type=fp32 shape=4x8 gradient=yes\n"
            "  tensor mask type=bool shape=samplesx8 gradient=no\n"
            "  tensor s type=fp32 shape=scalar gradient=yes\n");
}

TEST(Lower, ABackwardWaitsForASendThatNoGradientAnswers) {
  const Graph only_mask = graph_of(R"(
      input x [n,8]
      parameter w [8,8]
      parameter v [8,8]
      h = MatMul(x, w) [n,8]
      mask = Greater(x, h) bool[n,8]
      y = Where(mask, x, x) [n,8]
      z = MatMul(y, v) [n,8]
      l = ReduceMean(z) []
      outputs z
      loss l
  )");
  const Plan masked = plan_of(only_mask, two_hosts(),
                              "micro-batches 2\nstage a/0=8 : h mask\nstage b/0=8 : *\n", 16);
  EXPECT_EQ(section(masked, "program s0"),
            "program s0\n"
            "  forward mb=0\n"
            "  send c0 mb=0 after=forward:0\n"
            "  forward mb=1\n"
            "  send c0 mb=1 after=forward:1\n"
            "  backward mb=0 after=send:c0:0\n"
            "  backward mb=1 after=send:c0:1\n"
            "  update\n"
            "  report after=backward:1\n");
}

TEST(Lower, HalfPrecisionHalvesWhatIsSentAndReduced) {
  const Graph graph = skip_model();
  Training training = training_of(graph, 16);
  training.precision = Precision::kBf16;
  const Strategy strategy = strategy_of(
      "micro-batches 4\nstage a/0=4 : h0..a1\nstage b/0=2 b/1=2 : *\n", graph, two_hosts());
  const Result<Plan> plan =
      lower(graph, two_hosts(), training, strategy, {"0.1.0", 0, "t", "none"});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->cuts[0].tensors[0].type, DType::kBf16);
  EXPECT_EQ(plan->buckets[0].type, DType::kBf16);
}

TEST(Lower, RefusesABucketOfTwoTypes) {
  const Graph graph = graph_of(R"(
      input x [n,8]
      parameter w [8,8]
      parameter v fp64[8,8]
      h = MatMul(x, w) [n,8]
      z = MatMul(h, v) [n,8]
      l = ReduceMean(z) []
      outputs z
      loss l
  )");
  const Strategy strategy =
      strategy_of("micro-batches 1\nstage a/0=16 : *\nbucket 0 ring v w\n", graph, two_hosts());
  const Result<Plan> plan =
      lower(graph, two_hosts(), training_of(graph, 16), strategy, {"0.1.0", 0, "t", "none"});
  EXPECT_EQ(plan.status().message(), "strategy: bucket 0 of fp64 holds 'w' of fp32");
  EXPECT_EQ(plan.status().code(), StatusCode::kInternal);
}

TEST(Lower, EveryStrategyGivesAPlanThatItsModelAndClusterAccept) {
  for (const auto& [name, strategy] : strategies()) {
    const Status status =
        verify_plan_against(plan_of_strategy(strategy), skip_model(), two_hosts());
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  }
}

TEST(Lower, APlanThatCutsAMeanOverOneReplicasSamplesIsRefused) {
  const Graph graph = graph_of(R"(
      input x [n,8]
      parameter w [8,8]
      parameter v [8,8]
      h = MatMul(x, w) [n,8]
      aux = ReduceMean(h) []
      y = MatMul(h, v) [n,8]
      main = ReduceMean(y) []
      l = Add(aux, main) []
      outputs y
      loss l
  )");
  const Strategy strategy = strategy_of(
      "micro-batches 1\nstage a/0=3 a/1=1 : h aux\nstage b/0=4 : *\n"
      "bucket 0 ring w\nbucket 1 ring v\n",
      graph, two_hosts());
  const Result<Plan> plan =
      lower(graph, two_hosts(), training_of(graph, 4), strategy, {"0.1.0", 0, "t", "none"});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(verify_plan_against(*plan, graph, two_hosts()).message(),
            "plan: error: 'aux' goes from stage s0 to stage s1, but cannot be split by samples\n"
            "  hint: the operators that make and read it share a stage");
}

TEST(Lower, ASecondRunGivesTheSameBytes) {
  for (const auto& [name, strategy] : strategies()) {
    EXPECT_EQ(print_plan(plan_of_strategy(strategy)), print_plan(plan_of_strategy(strategy)))
        << name;
  }
}

/// Many shapes of pipelines: every one must verify, which proves that it cannot deadlock.
TEST(Lower, PipelinesOfAnyShapeVerify) {
  std::string model = "input x [n,8]\n";
  for (int i = 0; i < 8; ++i) model += "parameter w" + std::to_string(i) + " [8,8]\n";
  std::string before = "x";
  for (int i = 0; i < 8; ++i) {
    const std::string index = std::to_string(i);
    model += "h" + index + " = MatMul(" + before + ", w" + index + ") [n,8]\n";
    before = "h" + index;
    if (i % 3 == 2) {  // skip connections over three layers
      const std::string from = "h" + std::to_string(i - 2);
      model += "s" + index + " = Add(" + before + ", " + from + ") [n,8]\n";
      before = "s" + index;
    }
  }
  model += "l = ReduceMean(" + before + ") []\noutputs " + before + "\nloss l\n";
  const Graph graph = graph_of(model);
  const Cluster cluster =
      cluster_of("kind g memory=16e9 bandwidth=900e9 fp32=15e12\nhost a g 8\nhost b g 8\n");
  for (int stages = 1; stages <= 8; ++stages) {
    for (const int micro_batches : {1, 2, 3, 5, 16}) {
      for (const char* schedule : {"1f1b", "gpipe", "zero-bubble"}) {
        std::string text = "micro-batches " + std::to_string(micro_batches) + " " + schedule + "\n";
        for (int s = 0; s < stages; ++s) {
          const std::string index = std::to_string(s);
          text += "stage a/" + index + "=2 b/" + index + "=1 : ";
          text += s + 1 == stages ? "*\n" : "h0..h" + index + "\n";  // what is not taken yet
        }
        const Strategy strategy = strategy_of(text, graph, cluster);
        const Result<Plan> plan = lower(graph, cluster, training_of(graph, 3 * micro_batches),
                                        strategy, {"0.1.0", 0, "t", "none"});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        const Status status = verify_plan(*plan);
        EXPECT_TRUE(status.ok()) << text << status.message();
      }
    }
  }
}

/// `ops` operators, each of which reads the one before it and up to two random earlier ones.
std::string random_model(int ops, Rng& rng) {
  std::string model = "input x [n,8]\n";
  for (int i = 0; i < ops; ++i) model += "parameter w" + std::to_string(i) + " [8,8]\n";
  for (int i = 0; i < ops; ++i) {
    const std::string index = std::to_string(i);
    model += "h" + index + " = Mix(w" + index + "," + (i == 0 ? "x" : "h" + std::to_string(i - 1));
    for (std::uint64_t more = rng.below(3); more > 0 && i > 1; --more) {
      model += ",h" + std::to_string(rng.below(static_cast<std::uint64_t>(i)));
    }
    model += ") [n,8]\n";
  }
  const std::string last = "h" + std::to_string(ops - 1);
  return model + "l = ReduceSum(" + last + ") []\noutputs " + last + "\nloss l\n";
}

/// As `verify_strategy` wants it where every stage sends the next one a gradient.
std::vector<int> random_in_flight(int stages, int micro_batches, Rng& rng) {
  std::vector<int> numbers;
  for (int s = 0; s < stages; ++s) {
    numbers.push_back(1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(micro_batches))));
  }
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

TEST(Lower, PipelinesWithAnySkipConnectionsVerify) {
  const Cluster cluster = cluster_of("kind g memory=16e9 fp32=15e12\nhost a g 12\n");
  Rng rng(11);
  for (int round = 0; round < 200; ++round) {
    const int ops = 4 + static_cast<int>(rng.below(20));
    const std::string model = random_model(ops, rng);
    const Graph graph = graph_of(model);
    const int stages =
        2 + static_cast<int>(rng.below(static_cast<std::uint64_t>(std::min(ops, 11)) - 1));
    const int micro_batches = 1 + static_cast<int>(rng.below(12));
    std::string text = "micro-batches " + std::to_string(micro_batches);
    const bool gpipe = rng.below(3) == 0, chosen = !gpipe && rng.below(2) == 0;
    text += gpipe ? " gpipe\n" : " 1f1b\n";
    const std::vector<int> in_flight = random_in_flight(stages, micro_batches, rng);
    int first = 0;
    for (int s = 0; s < stages; ++s) {
      const int left = ops - first - (stages - s - 1);  // every later stage needs an operator
      const int last = first + static_cast<int>(rng.below(static_cast<std::uint64_t>(left)));
      text += "stage a/" + std::to_string(s) + "=2";
      if (chosen) text += " in-flight=" + std::to_string(in_flight[static_cast<std::size_t>(s)]);
      text += " : ";
      text += s + 1 == stages ? "*\n"
                              : "h" + std::to_string(first) + "..h" + std::to_string(last) + "\n";
      first = last + 1;
    }
    const Result<Plan> plan = lower(graph, cluster, training_of(graph, 2 * micro_batches),
                                    strategy_of(text, graph, cluster), {"0.1.0", 0, "t", "none"});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Status status = verify_plan(*plan);
    EXPECT_TRUE(status.ok()) << model << text << status.message();
    for (int s = 0; s < stages && chosen; ++s) {
      EXPECT_EQ(most_in_flight(plan->programs[static_cast<std::size_t>(s)]),
                in_flight[static_cast<std::size_t>(s)]);
    }
  }
}

}  // namespace
}  // namespace agpcs
