// SPDX-License-Identifier: Apache-2.0
// CostTable on kinds whose processors are known.
#include "cost_model/step/cost_table.h"
#include "tests/support/builders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;

constexpr const char* kGraph = R"(
  input x [n,8,64]
  parameter w [64,512]
  h = MatMul(x, w) [n,8,512]
  y = Relu(h) [n,8,512]
  outputs y
  loss y
)";

Cluster turing() {
  Cluster cluster = cluster_of(
      "kind gpu memory=16e9 fp32=8.1e12 fp16=65e12 bandwidth=320e9\n"
      "host a gpu 1\n");
  cluster.kinds[0].processors = {40, 70, "TSMC 12FFN", "GDDR6"};
  return cluster;
}

CostTable table_of(const Graph& graph, const Cluster& cluster, Precision precision) {
  Training training;
  training.batch = 300;
  training.precision = precision;
  Result<CostTable> table = CostTable::make(graph, cluster, training);
  EXPECT_TRUE(table.ok()) << table.status().message();
  return *table;
}

double forward_of(const Cluster& cluster, OpId op, Precision precision = Precision::kFp32) {
  const Graph graph = graph_of(kGraph);
  return table_of(graph, cluster, precision).seconds(0, op, 256).forward;
}

Cluster without_processors(Cluster cluster) {
  cluster.kinds[0].processors = {};
  return cluster;
}

TEST(CostTableOfProcessors, PowerSlowsAProductThatARooflineDoesNot) {
  EXPECT_GT(forward_of(turing(), 0), 1.5 * forward_of(without_processors(turing()), 0));
}

TEST(CostTableOfProcessors, StreamsTakeTheBandwidthOfTheirMemory) {
  EXPECT_NEAR(forward_of(turing(), 1), 5e-6 + 2 * 256 * 8 * 512 * 4 / (320e9 * 0.733), 1e-9);
}

TEST(CostTableOfProcessors, AnEfficiencyThatTheKindNamesComesFirst) {
  Cluster named = turing();
  named.kinds[0].efficiency = {{"matmul", 0.5}};
  EXPECT_DOUBLE_EQ(forward_of(named, 0), forward_of(without_processors(named), 0));
}

TEST(CostTableOfProcessors, PowerSlowsTensorCoresThatARooflineDoesNot) {
  EXPECT_GT(forward_of(turing(), 0, Precision::kFp16),
            1.2 * forward_of(without_processors(turing()), 0, Precision::kFp16));
}

/// The least seconds of `samples` samples in passes of at most `most`, by trying all.
double least_by_trying(const CostTable& table, int samples, int most) {
  std::vector<double> least(static_cast<std::size_t>(samples) + 1, 0);
  for (int n = 1; n <= samples; ++n) {
    double best = 1e30;
    for (int pass = 1; pass <= std::min(n, most); ++pass) {
      best = std::min(
          best, least[static_cast<std::size_t>(n - pass)] + table.seconds(0, 0, pass).forward);
    }
    least[static_cast<std::size_t>(n)] = best;
  }
  return least.back();
}

void expect_floors(const CostTable& table) {
  for (const int most : {1, 2, 5, 24, 37, 100, 300}) {
    const OpFloor floor = table.floor(0, 0, most);
    for (int n = 1; n <= most; ++n) {
      const double seconds = table.seconds(0, 0, n).forward * (1 + 1e-12);
      EXPECT_LE(floor.least_per_sample.forward * n, seconds);
      EXPECT_LE(floor.fixed.forward + floor.per_sample.forward * n, seconds);
    }
    EXPECT_LE(table.least_seconds(0, 0, most, most).forward,
              least_by_trying(table, most, most) * (1 + 1e-12));
  }
}

TEST(CostTableOfProcessors, FloorsBoundEveryWayToSplitTheSamples) {
  const Graph graph = graph_of(kGraph);
  for (const Precision precision : {Precision::kFp32, Precision::kFp16}) {
    expect_floors(table_of(graph, turing(), precision));
  }
}

}  // namespace
}  // namespace agpcs
