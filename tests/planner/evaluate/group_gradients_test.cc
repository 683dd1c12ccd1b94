// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/group_gradients.h"

#include "cost_model/network/link_model.h"
#include "planner/evaluate/evaluator.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace agpcs::testing {
namespace {

std::string buckets_of(const Problem& problem, const std::string& strategy,
                       std::int64_t bucket_bytes) {
  Strategy s = strategy_of(strategy, problem.graph, problem.cluster);
  s.buckets.clear();
  s = group_gradients(problem, std::move(s), bucket_bytes);
  EXPECT_EQ(verify_strategy(s, problem.graph, problem.cluster, problem.training.batch).message(),
            "");
  std::string text;
  for (const Bucket& bucket : s.buckets) {
    text += std::to_string(bucket.stage);
    for (const int other : bucket.shared_with) text += "+" + std::to_string(other);
    text += " " + std::string(name_of(bucket.algorithm)) + ":";
    for (const TensorId id : bucket.parameters) text += " " + problem.graph.tensor(id).name;
    text += '\n';
  }
  return text;
}

constexpr std::int64_t kLayer = 64 * 64 * 4;  // bytes of a layer's gradient

TEST(GroupGradients, StartsANewBucketWhenTheOldOneIsFull) {
  const auto problem = problem_of(chain(5, 64), fast_and_slow(), 8);
  const std::string strategy = "stage a/0=4 a/1=4 : *\n";
  EXPECT_EQ(buckets_of(*problem, strategy, 2 * kLayer),
            "0 ring: w4 w3\n0 ring: w2 w1\n0 ring: w0\n");
  EXPECT_EQ(buckets_of(*problem, strategy, 2 * kLayer - 1),
            "0 ring: w4\n0 ring: w3\n0 ring: w2\n0 ring: w1\n0 ring: w0\n");
  EXPECT_EQ(buckets_of(*problem, strategy, 1),
            "0 ring: w4\n0 ring: w3\n0 ring: w2\n0 ring: w1\n0 ring: w0\n");
  EXPECT_EQ(buckets_of(*problem, strategy, 1'000'000'000), "0 ring: w4 w3 w2 w1 w0\n");
}

TEST(GroupGradients, BytesAreThoseThatTravel) {
  const auto problem = problem_of(chain(4, 64), fast_and_slow(), 8, {}, DType::kFp16);
  const std::string strategy = "stage a/0=4 a/1=4 : *\n";
  EXPECT_EQ(buckets_of(*problem, strategy, kLayer), "0 ring: w3 w2\n0 ring: w1 w0\n");
  EXPECT_EQ(buckets_of(*problem, strategy, kLayer - 1),
            "0 ring: w3\n0 ring: w2\n0 ring: w1\n0 ring: w0\n");
}

TEST(GroupGradients, AStageHasItsOwnBuckets) {
  const auto problem = problem_of(chain(4, 64), fast_and_slow(), 8);
  EXPECT_EQ(buckets_of(*problem, "stage a/0=8 : h0..a1\nstage b/0=8 : *\n", 1'000'000'000),
            "0 ring: w1 w0\n1 ring: w3 w2\n");
}

/// Both ends of four layers read `table` and `bias`, all of three stages `often`.
const char* const kTied =
    "input x [n,64]\nparameter table [64,64]\nparameter bias [64,64]\nparameter often [64,64]\n"
    "parameter w [64,64]\n"
    "a = MatMul(x, table) [n,64]\nb = MatMul(a, bias) [n,64]\nc = MatMul(b, often) [n,64]\n"
    "d = MatMul(c, w) [n,64]\ne = MatMul(d, often) [n,64]\nf = MatMul(e, bias) [n,64]\n"
    "g = MatMul(f, often) [n,64]\nh = MatMul(g, table) [n,64]\nl = ReduceMean(h) []\n"
    "outputs h\nloss l\n";

TEST(GroupGradients, WhatStagesShareComesLastByTheStagesThatReadIt) {
  const auto problem = problem_of(graph_of(kTied), fast_and_slow(), 8);
  const std::string strategy = "stage a/0=8 : a..c\nstage a/1=8 : d..e\nstage b/0=8 : *\n";
  for (const std::int64_t bytes : {std::int64_t{0}, 2 * kLayer}) {
    EXPECT_EQ(buckets_of(*problem, strategy, bytes),
              "1 ring: w\n0+1+2 tree: often\n0+2 ring: bias table\n");
  }
  EXPECT_EQ(buckets_of(*problem, strategy, kLayer),
            "1 ring: w\n0+1+2 tree: often\n0+2 ring: bias\n0+2 ring: table\n");
}

TEST(GroupGradients, TheAlgorithmOfWhatStagesShareIsThatOfAllTheirDevices) {
  const Cluster cluster =
      cluster_of("kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\nhost a gpu 4 latency=1e-3\n");
  const auto problem = problem_of(graph_of(kTied), cluster, 8);
  const std::vector<DeviceId> all = {0, 1, 2, 3};
  ASSERT_NE(choose_algorithm(cluster, all, kLayer, BucketSum::kOnAll), AllReduce::kRing);
  const std::string algorithm(name_of(choose_algorithm(cluster, all, kLayer, BucketSum::kOnAll)));
  const std::string strategy = "stage a/0=4 a/1=4 : a..e\nstage a/2=4 a/3=4 : *\n";
  EXPECT_EQ(buckets_of(*problem, strategy, 1'000'000'000),
            "0 ring: w\n0+1 " + algorithm + ": often bias table\n");
  Strategy s = strategy_of(strategy, problem->graph, problem->cluster);
  s.buckets.clear();
  Evaluator evaluator(*problem);
  EXPECT_EQ(evaluator.grouped(s), group_gradients(*problem, s, problem->options.bucket_bytes));
}

TEST(GroupGradients, TheAlgorithmOfPartsIsThatWhoseHalvesTakeLeast) {
  const Cluster cluster = cluster_of(
      "kind k memory=16e9 bandwidth=300e9 fp32=7e12\n"
      "host a k 3 bandwidth=300e9 nic=12e9\nhost b k 1 bandwidth=300e9 nic=12e9\n");
  const std::vector<DeviceId> all = {0, 1, 2, 3};
  int differ = 0;
  for (std::int64_t bytes = 4096; bytes <= 1 << 26; bytes *= 4) {
    const std::vector<std::int64_t> parts(all.size(), bytes / 4);
    const auto halves = [&](AllReduce algorithm) {
      return lone_seconds(cluster, reduce_scatter(cluster, all, algorithm, parts)) +
             lone_seconds(cluster, all_gather(cluster, all, algorithm, parts));
    };
    const AllReduce chosen = choose_algorithm(cluster, all, bytes, BucketSum::kInParts);
    for (const AllReduce other : kAllReduces) EXPECT_LE(halves(chosen), halves(other));
    differ += chosen != choose_algorithm(cluster, all, bytes, BucketSum::kOnAll) ? 1 : 0;
  }
  EXPECT_GT(differ, 0);
}

TEST(GroupGradients, AParameterIsReadyWhenItsFirstUserHasRunBackward) {
  const auto problem = problem_of(graph_of("input x [n,8]\n"
                                           "parameter shared [8,8]\n"
                                           "parameter w [8,8]\n"
                                           "a = MatMul(x, shared) [n,8]\n"
                                           "b = MatMul(a, w) [n,8]\n"
                                           "c = MatMul(b, shared) [n,8]\n"
                                           "l = ReduceMean(c) []\n"
                                           "outputs c\nloss l\n"),
                                  fast_and_slow(), 8);
  EXPECT_EQ(buckets_of(*problem, "stage a/0=4 a/1=4 : *\n", 1), "0 ring: w\n0 ring: shared\n");
}

TEST(GroupGradients, NoContiguousGroupingOfAStageIsSimulatedFasterThanThePlanners) {
  constexpr int kLayers = 6;
  for (const std::int64_t batch : {64, 1024, 4096, 16384}) {
    const auto problem = problem_of(chain(kLayers, 512), fast_and_slow(), batch);
    Strategy strategy;
    strategy.stage_of.assign(problem->graph.ops.size(), 0);
    strategy.stages.push_back({{0, 1, 2, 3}, std::vector<std::int64_t>(4, batch / 4), false});
    Evaluator evaluator(*problem);
    const Strategy planned = group_gradients(*problem, strategy, 0);
    const Strategy single = group_gradients(*problem, strategy, 1);
    ASSERT_EQ(single.buckets.size(), kLayers);
    double best = std::numeric_limits<double>::infinity();
    for (unsigned mask = 0; mask < 1U << (kLayers - 1); ++mask) {
      Strategy other = strategy;
      std::int64_t bytes = 0;
      for (unsigned i = 0; i < kLayers; ++i) {
        if (i == 0 || (mask >> (i - 1) & 1) != 0) {
          other.buckets.push_back({0, AllReduce::kRing, {}});
          bytes = 0;
        }
        bytes += std::int64_t{512} * 512 * 4;
        other.buckets.back().parameters.push_back(single.buckets[i].parameters.front());
        other.buckets.back().algorithm = choose_algorithm(
            problem->cluster, strategy.stages[0].devices, bytes, BucketSum::kOnAll);
      }
      best = std::min(best, evaluator.evaluate(other).step_seconds);
    }
    const double seconds = evaluator.evaluate(planned).step_seconds;
    EXPECT_LE(seconds, best * (1 + 1e-6)) << batch;
    EXPECT_EQ(seconds, evaluator.evaluate(strategy).step_seconds) << batch;
  }
}

TEST(GroupGradients, OneDeviceHasOneBucket) {
  const auto problem = problem_of(chain(4, 64), fast_and_slow(), 8);
  EXPECT_EQ(buckets_of(*problem, "stage a/0=8 : h0..a1\nstage b/0=8 : *\n", 0),
            "0 ring: w1 w0\n1 ring: w3 w2\n");
}

TEST(ChooseAlgorithm, IsHierarchicalWhereASlowNetworkJoinsFastHosts) {
  const Cluster cluster = cluster_of(
      "kind x fp32=1e12\n"
      "host a x 4 bandwidth=100e9 nic=1e9 nic-latency=50e-6\n"
      "host b x 4 bandwidth=100e9 nic=1e9 nic-latency=50e-6\n");
  EXPECT_EQ(choose_algorithm(cluster, {0, 1, 2, 3, 4, 5, 6, 7}, 1'000'000, BucketSum::kOnAll),
            AllReduce::kHierarchical);
  EXPECT_EQ(choose_algorithm(cluster, {0, 1, 2, 3}, 100'000'000, BucketSum::kOnAll),
            AllReduce::kRing);
  EXPECT_EQ(choose_algorithm(cluster, {0, 4}, 1'000'000, BucketSum::kOnAll), AllReduce::kRing);
}

TEST(ChooseAlgorithm, IsTheTreeForFewBytesOverManyHosts) {
  std::string text = "kind x fp32=1e12\n";
  for (int host = 0; host < 16; ++host) {
    text += "host h" + std::to_string(host) + " x 1 nic=1e9 nic-latency=30e-6\n";
  }
  const Cluster cluster = cluster_of(text);
  std::vector<DeviceId> all(16);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(choose_algorithm(cluster, all, 10'000, BucketSum::kOnAll), AllReduce::kTree);
  EXPECT_EQ(choose_algorithm(cluster, all, 100'000'000, BucketSum::kOnAll), AllReduce::kRing);
}

TEST(ChooseAlgorithm, IsTheRingWhereHostsAreNoFasterInside) {
  const Cluster cluster = cluster_of(
      "kind x fp32=1e12\n"
      "host a x 4 bandwidth=1e9 nic=10e9 nic-latency=1e-6\n"
      "host b x 4 bandwidth=1e9 nic=10e9 nic-latency=1e-6\n");
  EXPECT_EQ(choose_algorithm(cluster, {0, 1, 2, 3, 4, 5, 6, 7}, 100'000'000, BucketSum::kOnAll),
            AllReduce::kRing);
}

}  // namespace
}  // namespace agpcs::testing
