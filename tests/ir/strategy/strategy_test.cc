// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/strategy.h"

#include "ir/base/rng.h"
#include "ir/graph/graph.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/plan_graph.h"
#include "tests/support/builders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr const char* kChain = R"(
input x [n,8]
parameter w1 [8,16]
parameter w2 [16,4]
h = MatMul(x, w1) [n,16]
r = Relu(h) [n,16]
y = MatMul(r, w2) [n,4]
outputs y
)";

constexpr const char* kTwoHosts = R"(
kind gpu memory=16e9 bandwidth=900e9 fp32=15e12
host a gpu 2
host b gpu 2
)";

constexpr const char* kTwoStages = R"(
micro-batches 2
stage a/0=3 a/1=1 : h..r
stage b/0=4 : *
)";

struct Case {
  Graph graph = testing::graph_of(kChain);
  Cluster cluster = testing::cluster_of(kTwoHosts);
  Strategy strategy = testing::strategy_of(kTwoStages, graph, cluster);

  std::string verify(std::int64_t batch = 8) const {
    return verify_strategy(strategy, graph, cluster, batch).message();
  }
};

TEST(VerifyStrategy, AcceptsTwoStagesWithUnequalShares) { EXPECT_EQ(Case().verify(), ""); }

struct Fault {
  const char* name;
  std::function<void(Case&)> make;
  const char* message;
};

void PrintTo(const Fault& of, std::ostream* out) { *out << of.name; }  // NOLINT

class VerifyStrategyRefuses : public ::testing::TestWithParam<Fault> {};

TEST_P(VerifyStrategyRefuses, WithBothValues) {
  Case c;
  GetParam().make(c);
  EXPECT_EQ(c.verify(), GetParam().message);
}

const Fault kFaults[] = {
    {"MoreMicroBatchesThanSamples", [](Case& c) { c.strategy.micro_batches = 9; },
     "strategy: a batch of 8 does not make 9 micro-batches"},
    {"SharesOfOtherMicroBatches", [](Case& c) { c.strategy.micro_batches = 3; },
     "strategy: stage 0: shares sum to 4, micro-batch has 3 samples"},
    {"ADeviceWithoutASampleOfSmallerMicroBatches",
     [](Case& c) {
       c.strategy.micro_batches = 5;
       c.strategy.stages[0].shares = {1, 1};
     },
     "strategy: stage 0: 2 devices, but a micro-batch of 1 samples"},
    {"SharesThatMissSamples",
     [](Case& c) {
       c.strategy.stages[0].shares = {2, 1};
     },
     "strategy: stage 0: shares sum to 3, micro-batch has 4 samples"},
    {"AnEmptyShare",
     [](Case& c) {
       c.strategy.stages[0].shares = {4, 0};
     },
     "strategy: stage 0 has a share of 0 samples"},
    {"ADeviceInTwoStages", [](Case& c) { c.strategy.stages[1].devices = {1}; },
     "strategy: stage 1: device 1 does not exist or serves another stage"},
    {"ADeviceThatIsNotThere", [](Case& c) { c.strategy.stages[1].devices = {9}; },
     "strategy: stage 1: device 9 does not exist or serves another stage"},
    {"DevicesOutOfOrder",
     [](Case& c) {
       c.strategy.stages[0].devices = {1, 0};
     },
     "strategy: stage 0: devices not ascending"},
    {"AStageWithoutOperators",
     [](Case& c) {
       c.strategy.stage_of = {0, 0, 0};
     },
     "strategy: stage 1 has no operator"},
    {"AnOperatorInNoStage", [](Case& c) { c.strategy.stage_of[1] = -1; },
     "strategy: operator 'r' is in stage -1 of 2"},
    {"AnEdgeThatGoesBack",
     [](Case& c) {
       c.strategy.stage_of = {1, 0, 1};
     },
     "strategy: 'h' goes back from stage 1 to stage 0"},
    {"AParameterInTwoBuckets",
     [](Case& c) { c.strategy.buckets.push_back(c.strategy.buckets.front()); },
     "strategy: 'w1' is in two buckets"},
    {"AParameterInNoBucket", [](Case& c) { c.strategy.buckets.pop_back(); },
     "strategy: 'w2' is in no bucket"},
    {"NothingInFlight", [](Case& c) { c.strategy.stages[0].in_flight = 0; },
     "strategy: stage 0 has 0 of 2 micro-batches in flight"},
    {"MoreInFlightThanThereAre", [](Case& c) { c.strategy.stages[0].in_flight = 3; },
     "strategy: stage 0 has 3 of 2 micro-batches in flight"},
    {"InFlightWithGPipe",
     [](Case& c) {
       c.strategy.schedule = Schedule::kGPipe;
       c.strategy.stages[1].in_flight = 2;
     },
     "strategy: stage 1 has 2 micro-batches in flight, but the schedule is gpipe"},
    {"PartedBackwardPassesOfAStageThatRecomputes",
     [](Case& c) {
       c.strategy.schedule = Schedule::kZeroBubble;
       c.strategy.stages[1].recompute = kWholeStage;
     },
     "strategy: the schedule is zero-bubble, but a stage recomputes, or divides gradients or "
     "parameters"},
    {"PartedBackwardPassesOfAStageThatDividesParameters",
     [](Case& c) {
       c.strategy.schedule = Schedule::kZeroBubble;
       c.strategy.stages[1].state = StateLevel::kParameters;
     },
     "strategy: the schedule is zero-bubble, but a stage recomputes, or divides gradients or "
     "parameters"},
    {"FewerInFlightThanALaterStageThatReadsIt",
     [](Case& c) {
       c.strategy.stages[0].in_flight = 1;
       c.strategy.stages[1].in_flight = 2;
     },
     "strategy: stage 1 has 2 micro-batches in flight, and stage 0, which sends it 'r', has 1: "
     "they would wait for each other"},
    {"ABucketOfAnotherStage", [](Case& c) { c.strategy.buckets[0].stage = 1; },
     "strategy: bucket 0 of stage 1 holds 'w1' of stage 0"},
};

INSTANTIATE_TEST_SUITE_P(Faults, VerifyStrategyRefuses, ::testing::ValuesIn(kFaults),
                         [](const auto& fault) { return fault.param.name; });

TEST(VerifyStrategy, AParameterThatTwoStagesReadIsInABucketOfBoth) {
  const Graph graph = testing::graph_of(R"(
input x [n,8]
parameter w [8,8]
parameter v [8,8]
h = MatMul(x, w) [n,8]
r = MatMul(h, v) [n,8]
y = MatMul(r, w) [n,8]
)");
  const Cluster cluster = testing::cluster_of(kTwoHosts);
  Strategy strategy = testing::strategy_of("stage a/0=4 : h..r\nstage a/1=4 : y\n", graph, cluster);
  ASSERT_EQ(strategy.buckets.size(), 2U);
  EXPECT_EQ(strategy.buckets[1].shared_with, std::vector{1});
  EXPECT_EQ(verify_strategy(strategy, graph, cluster, 4).message(), "");
  EXPECT_THAT(print_strategy(strategy, graph, cluster),
              ::testing::HasSubstr("bucket stage=0 shared-with=1 algorithm=ring: w\n"));
  strategy.buckets[1].shared_with.clear();
  EXPECT_EQ(verify_strategy(strategy, graph, cluster, 4).message(),
            "strategy: bucket 1 of stage 0 holds 'w' of stage 0 and 1");
  strategy.buckets[0].shared_with = {1};
  EXPECT_EQ(verify_strategy(strategy, graph, cluster, 4).message(),
            "strategy: bucket 0 of stage 0 and 1 holds 'v' of stage 0");
}

TEST(VerifyStrategy, RefusesRunningStatisticsThatTwoStagesUse) {
  const Graph graph = testing::graph_of(R"(
input x [n,8]
state m [8]
h = Add(x, m) [n,8]
y = Add(h, m) [n,8]
)");
  const Cluster cluster = testing::cluster_of(kTwoHosts);
  const Strategy strategy =
      testing::strategy_of("stage a/0=4 : h\nstage a/1=4 : y\n", graph, cluster);
  EXPECT_EQ(verify_strategy(strategy, graph, cluster, 4).message(),
            "strategy: state 'm' is used in stages 0 and 1");
}

TEST(VerifyStrategy, RefusesACutThroughATensorWhoseSamplesAreMixed) {
  const Graph graph = testing::graph_of(R"(
input x [n,8]
t = Transpose(x) [8,n]
y = Transpose(t) [n,8]
)");
  const Cluster cluster = testing::cluster_of(kTwoHosts);
  const Strategy strategy =
      testing::strategy_of("stage a/0=4 : t\nstage a/1=4 : y\n", graph, cluster);
  EXPECT_EQ(verify_strategy(strategy, graph, cluster, 4).message(),
            "strategy: 't' crosses from stage 0 to stage 1 but cannot be split by samples");
}

/// Whether the passes of all stages come to an end where each waits for the passes of its stage
/// before it, for what it receives, and for nothing else.
bool finishes(const Strategy& strategy, const std::vector<Cut>& cuts) {
  const std::vector<std::int64_t> in_flight = in_flight_by_stage(strategy);
  std::vector<std::int64_t> forwards(in_flight.size()), backwards(in_flight.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < in_flight.size(); ++s) {
      if (backwards[s] == strategy.micro_batches) continue;
      const bool full =
          forwards[s] == strategy.micro_batches || forwards[s] - backwards[s] == in_flight[s];
      const bool there = std::all_of(cuts.begin(), cuts.end(), [&](const Cut& cut) {
        const auto from = static_cast<std::size_t>(cut.from), to = static_cast<std::size_t>(cut.to);
        if (full) return from != s || !has_gradient(cut) || backwards[to] > backwards[s];
        return to != s || forwards[from] > forwards[s];
      });
      if (!there) continue;
      ++(full ? backwards : forwards)[s];
      moved = true;
    }
  }
  return std::all_of(backwards.begin(), backwards.end(),
                     [&](std::int64_t done) { return done == strategy.micro_batches; });
}

/// Layers in a row, one a stage, that read random earlier ones; some of what they make has no
/// gradient.
std::string random_layers(int layers, Rng& rng) {
  std::string text = "input x [n,8]\n";
  for (int i = 0; i < layers; ++i) text += "parameter w" + std::to_string(i) + " [8,8]\n";
  for (int i = 0; i < layers; ++i) {
    const std::string number = std::to_string(i);
    text += "h" + number + " = " + (rng.below(3) == 0 ? "Greater" : "Mix") + "(w" + number;
    for (int from = 0; from < i; ++from) {
      if (rng.below(2) == 0) text += ",h" + std::to_string(from);
    }
    text += ",x) [n,8]\n";
  }
  return text + "l = ReduceSum(h" + std::to_string(layers - 1) + ") []\noutputs h" +
         std::to_string(layers - 1) + "\nloss l\n";
}

/// Verification refuses exactly those numbers in flight with which stages wait for each other.
TEST(VerifyStrategy, AcceptsWhatIsInFlightIfAllPassesComeToAnEnd) {
  Rng rng(3);
  const Cluster cluster = testing::cluster_of("kind g memory=16e9 fp32=15e12\nhost a g 6\n");
  int accepted = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    const int layers = 2 + static_cast<int>(rng.below(5));
    const Graph graph = testing::graph_of(random_layers(layers, rng));
    Strategy strategy;
    strategy.micro_batches = 1 + static_cast<std::int64_t>(rng.below(6));
    for (int s = 0; s < layers; ++s) {
      strategy.stage_of.push_back(s);
      strategy.stages.push_back({{s}, {1}});
      const auto number = 1 + rng.below(static_cast<std::uint64_t>(strategy.micro_batches));
      if (rng.below(4) > 0) strategy.stages.back().in_flight = static_cast<std::int64_t>(number);
    }
    strategy.stage_of.push_back(layers - 1);
    const Status status = verify_strategy(strategy, graph, cluster, strategy.micro_batches);
    const std::vector<Cut> cuts = cuts_between(graph, strategy.stage_of, Precision::kFp32);
    EXPECT_EQ(status.ok(), finishes(strategy, cuts))
        << print_strategy(strategy, graph, cluster) << status.message();
    ++(status.ok() ? accepted : refused);
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 50);
}

TEST(FitInFlight, LeavesNoStageMoreThanAnEarlierOneOrThanThereIs) {
  using Numbers = std::vector<std::int64_t>;  // 0: the textbook's
  const auto fitted = [&](std::int64_t micro_batches, const Numbers& wanted) {
    Strategy strategy;
    strategy.micro_batches = micro_batches;
    for (const std::int64_t number : wanted) {
      strategy.stages.emplace_back();
      if (number > 0) strategy.stages.back().in_flight = number;
    }
    fit_in_flight(strategy);
    Numbers own;
    for (const StageSpec& spec : strategy.stages) own.push_back(spec.in_flight.value_or(0));
    return own;
  };
  EXPECT_EQ(fitted(8, {0, 0, 0}), (Numbers{0, 0, 0}));
  EXPECT_EQ(fitted(8, {5, 3, 1}), (Numbers{5, 3, 0}));  // the last has 1 anyway
  EXPECT_EQ(fitted(8, {2, 0, 0}), (Numbers{2, 0, 0}));
  EXPECT_EQ(fitted(8, {1, 0, 0}), (Numbers{1, 1, 0}));
  EXPECT_EQ(fitted(8, {0, 7, 4}), (Numbers{0, 3, 3}));
  EXPECT_EQ(fitted(4, {9, 3, 1}), (Numbers{4, 3, 0}));
  EXPECT_EQ(fitted(2, {9, 9, 9}), (Numbers{0, 0, 2}));
  EXPECT_EQ(fitted(8, {4}), (Numbers{0}));
}

/// Whether a boundary may cut 'y', which is made by `op` from x [n,8] and is of `shape`.
bool crosses(const std::string& op, const std::string& shape) {
  const Graph graph = testing::graph_of("input x [n,8]\ny = " + op + " " + shape + "\n");
  return can_cross(graph)[static_cast<std::size_t>(graph.find_tensor("y"))];
}

TEST(CanCross, WantsTheSampleOnTheFirstAxis) {
  EXPECT_TRUE(crosses("Relu(x)", "[n,8]"));
  EXPECT_FALSE(crosses("Reshape(x)", "[12n,8]"));  // samples x heads: not known to be sample-major
  EXPECT_FALSE(crosses("Transpose(x)", "[8,n]"));
  EXPECT_FALSE(crosses("MatMul(x)", "[n,n]"));    // samples against samples
  EXPECT_FALSE(crosses("Concat(x)", "[n+1,8]"));  // a class token beside the samples
}

TEST(CanCross, RefusesAMeanOverTheSamplesOfOneReplica) {
  EXPECT_FALSE(crosses("ReduceMean(x)", "[1,8]"));
  EXPECT_FALSE(crosses("ReduceMean(x)", "[]"));
}

TEST(CanCross, AllowsWhatIsTheSameForAllSamples) {
  const Graph graph = testing::graph_of(R"(
input x [n,8]
parameter w [8,8]
t = Transpose(w) [8,8]
y = MatMul(x, t) [n,8]
)");
  EXPECT_TRUE(can_cross(graph)[static_cast<std::size_t>(graph.find_tensor("t"))]);
}

TEST(PrintStrategy, SaysWhoComputesWhat) {
  const Case c;
  EXPECT_EQ(print_strategy(c.strategy, c.graph, c.cluster),
            "strategy micro-batches=2 schedule=1f1b\n"
            "stage 0: a/0=3 a/1=1\n"
            "  h\n"
            "  r\n"
            "stage 1: b/0=4\n"
            "  y\n"
            "bucket stage=0 algorithm=ring: w1\n"
            "bucket stage=1 algorithm=ring: w2\n");
}

TEST(PrintStrategy, SaysWhatIsInFlightWhereItIsNotTheTextbooks) {
  Case c;
  c.strategy.stages[0].in_flight = 1;
  EXPECT_THAT(print_strategy(c.strategy, c.graph, c.cluster),
              ::testing::HasSubstr("stage 0 in-flight=1: a/0=3 a/1=1\n"));
}

}  // namespace
}  // namespace agpcs
