// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/cost_table.h"

#include "tests/support/builders.h"

#include <gmock/gmock.h>

#include <string>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;
using ::testing::HasSubstr;

constexpr const char* kGraph = R"(
  input x [n,64]
  parameter w [64,32]
  h = MatMul(x, w) [n,32]
  y = Relu(h) [n,32]
  z = Reshape(y) [n,4,8]
  outputs z
  loss z
)";

Cluster gpu(const std::string& figures) {
  return cluster_of("kind gpu memory=16e9 " + figures + "\nhost a gpu 1\n");
}

CostTable table_of(const Graph& graph, const Cluster& cluster, const Training& training = {}) {
  Result<CostTable> table = CostTable::make(graph, cluster, training);
  EXPECT_TRUE(table.ok()) << table.status().message();
  return *table;
}

TEST(CostTable, BoundsAMatrixProductByArithmeticWhereMemoryIsFast) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = gpu("fp32=1e12 bandwidth=1e30 launch=0");
  const OpSeconds seconds = table_of(graph, cluster).seconds(0, 0, 100);
  const double flops = 2.0 * 100 * 64 * 32;
  EXPECT_DOUBLE_EQ(seconds.forward, flops / (1e12 * default_efficiency(OpClass::kMatmul)));
  // x needs no gradient: the backward pass is one product of the same size.
  EXPECT_DOUBLE_EQ(seconds.backward, seconds.forward);
}

TEST(CostTable, BoundsAMatrixProductByMemoryWhereMemoryIsSlow) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = gpu("fp32=1e30 bandwidth=1e9 launch=0");
  const double bytes = 4.0 * (100 * 64 + 64 * 32 + 100 * 32);
  EXPECT_DOUBLE_EQ(table_of(graph, cluster).seconds(0, 0, 100).forward, bytes / 1e9);
}

TEST(CostTable, LowersTheBandwidthOfMemoryBoundClassesByTheirEfficiency) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = gpu("fp32=1e30 bandwidth=1e9 launch=0");
  const double bytes = 4.0 * 2 * 100 * 32;
  EXPECT_DOUBLE_EQ(table_of(graph, cluster).seconds(0, 1, 100).forward,
                   bytes / (1e9 * default_efficiency(OpClass::kElementwise)));
}

TEST(CostTable, AddsTheLaunchOverheadOnceAPass) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = gpu("fp32=1e30 bandwidth=1e30 launch=7e-6");
  const OpSeconds seconds = table_of(graph, cluster).seconds(0, 1, 3);
  EXPECT_NEAR(seconds.forward, 7e-6, 1e-12);
  EXPECT_NEAR(seconds.backward, 7e-6, 1e-12);
}

TEST(CostTable, ViewsCostNothing) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = gpu("fp32=1e12 bandwidth=1e9");
  const OpSeconds seconds = table_of(graph, cluster).seconds(0, 2, 100);
  EXPECT_EQ(seconds.forward, 0);
  EXPECT_EQ(seconds.backward, 0);
}

TEST(CostTable, TakesTheEfficiencyOfTheKindWhereItNamesTheClass) {
  const Graph graph = graph_of(kGraph);
  Cluster cluster = gpu("fp32=1e12 bandwidth=1e30 launch=0");
  cluster.kinds[0].efficiency["matmul"] = 0.25;
  EXPECT_DOUBLE_EQ(table_of(graph, cluster).seconds(0, 0, 100).forward,
                   2.0 * 100 * 64 * 32 / 0.25e12);
}

TEST(CostTable, HalfPrecisionHasItsOwnPeakAndHalfTheBytes) {
  const Graph graph = graph_of(kGraph);
  Training half;
  half.precision = Precision::kFp16;
  const Cluster fast = gpu("fp32=1e12 fp16=8e12 bandwidth=1e30 launch=0");
  EXPECT_DOUBLE_EQ(
      table_of(graph, fast, half).seconds(0, 0, 100).forward,
      2.0 * 100 * 64 * 32 / (8e12 * default_efficiency(OpClass::kMatmul, Precision::kFp16)));
  const Cluster slow = gpu("fp32=1e30 fp16=1e30 bandwidth=1e9 launch=0");
  EXPECT_DOUBLE_EQ(table_of(graph, slow, half).seconds(0, 1, 100).forward,
                   table_of(graph, slow).seconds(0, 1, 100).forward / 2);
}

// The table keeps costs as lines over the samples; they must be what `op_cost` says at any number.
TEST(CostTable, AgreesWithTheOperatorTableAtEveryNumberOfSamples) {
  const Graph graph = graph_of(R"(
    input x [n,16]
    parameter w [16,16]
    h = MatMul(x, w) [n,16]
    t = Transpose(h) [16,n]
    s = MatMul(h, t) [n,n]
    y = Softmax(s) [n,n]
    outputs y
    loss y
  )");
  const Cluster cluster = gpu("fp32=1e12 bandwidth=1e11 launch=0");
  const CostTable table = table_of(graph, cluster);
  const auto roofline = [](OpClass c, double flops, double bytes) {
    const bool matmul = c == OpClass::kMatmul;
    const double efficiency = default_efficiency(c);
    return std::max(flops / (1e12 * (matmul ? efficiency : 1)),
                    bytes / (1e11 * (matmul ? 1 : efficiency)));
  };
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    for (const std::int64_t samples : {1, 2, 3, 5, 64, 1000}) {
      const OpCost cost = op_cost(graph, op, samples, Precision::kFp32);
      const OpClass c = class_of(graph.op(op));
      const OpSeconds seconds = table.seconds(0, op, samples);
      EXPECT_EQ(seconds.forward, roofline(c, cost.forward_flops, cost.forward_bytes))
          << graph.op(op).name << " at " << samples;
      EXPECT_EQ(seconds.backward, roofline(c, cost.backward_flops, cost.backward_bytes))
          << graph.op(op).name << " at " << samples;
    }
  }
}

TEST(CostTable, SpeedIsSamplesOverTheTimeOfAllOperators) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = gpu("fp32=1e12 bandwidth=1e11");
  const CostTable table = table_of(graph, cluster);
  double seconds = 0;
  for (OpId op = 0; op < 3; ++op) {
    seconds += table.seconds(0, op, 50).forward + table.seconds(0, op, 50).backward;
  }
  EXPECT_DOUBLE_EQ(table.speed(0, 50), 50 / seconds);
}

TEST(CostTable, UpdateMovesParametersGradientsAndOptimizerState) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = gpu("fp32=1e12 fp16=1e12 bandwidth=1e9 launch=1e-3");
  const auto bytes_per_parameter = [&](const Training& training) {
    const double seconds = table_of(graph, cluster, training).update_seconds(0, 1000, 2) - 2e-3;
    return seconds * 1e9 * default_efficiency(OpClass::kElementwise) / 1000;
  };
  Training training;
  EXPECT_NEAR(bytes_per_parameter(training), 3 * 4, 1e-9);  // read w and g, write w
  training.optimizer.momentum = 0.9;
  EXPECT_NEAR(bytes_per_parameter(training), 5 * 4, 1e-9);
  training.optimizer.kind = OptimizerKind::kAdam;
  EXPECT_NEAR(bytes_per_parameter(training), 7 * 4, 1e-9);
  training.precision = Precision::kFp16;  // 2-byte gradient, and a 2-byte copy of the parameter
  EXPECT_NEAR(bytes_per_parameter(training), 7 * 4 - 2 + 2, 1e-9);
}

TEST(CostTable, RefusesAPrecisionThatAKindHasNoPeakFor) {
  const Graph graph = graph_of(kGraph);
  Training training;
  training.precision = Precision::kTf32;
  const Result<CostTable> table = CostTable::make(graph, gpu("fp16=4e12 fp32=1e12"), training);
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(table.status().message(),
            "device kind 'gpu' has no peak for precision 'tf32'; it has: fp16, fp32\n"
            "  hint: add tf32 to its peak, or train in a precision that every kind has");
}

TEST(CostTable, DoesNotAskForThePeakOfAKindWithoutDevices) {
  const Graph graph = graph_of(kGraph);
  const Cluster cluster = cluster_of("kind spare fp16=1e12\nkind gpu fp32=1e12\nhost a gpu 1\n");
  EXPECT_TRUE(CostTable::make(graph, cluster, {}).ok());
}

TEST(CostTable, RefusesAnEfficiencyOfAClassThatThereIsNot) {
  const Graph graph = graph_of(kGraph);
  Cluster cluster = gpu("fp32=1e12");
  cluster.kinds[0].efficiency["matmull"] = 0.5;
  const Result<CostTable> table = CostTable::make(graph, cluster, {});
  ASSERT_FALSE(table.ok());
  EXPECT_THAT(table.status().message(), HasSubstr("device kind 'gpu': efficiency names operator "
                                                  "class 'matmull', which there is not"));
  EXPECT_THAT(table.status().message(), HasSubstr("did you mean 'matmul'?"));
}

TEST(CostTable, RefusesAnEfficiencyOutsideOfZeroToOne) {
  const Graph graph = graph_of(kGraph);
  Cluster cluster = gpu("fp32=1e12");
  cluster.kinds[0].efficiency["matmul"] = 1.5;
  const Result<CostTable> table = CostTable::make(graph, cluster, {});
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().message(),
            "device kind 'gpu': efficiency of 'matmul' is 1.5, which is not in (0, 1]");
}

}  // namespace
}  // namespace agpcs
