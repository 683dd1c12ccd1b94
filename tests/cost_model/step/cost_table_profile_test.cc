// SPDX-License-Identifier: Apache-2.0
// CostTable on kinds with a profile.
#include "cost_model/fit/calibrate.h"
#include "cost_model/step/cost_table.h"
#include "ir/graph/op_signature.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/support/builders.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;
using testing::measured_device;
using testing::with_device;

constexpr const char* kGraph = R"(
  input x [n,64]
  parameter w1 [64,32]
  parameter w2 [32,128]
  a = MatMul(x, w1) [n,32]
  b = Relu(a) [n,32]
  c = MatMul(b, w2) [n,128]
  d = Relu(c) [n,128]
  y = Softmax(d) [n,128]
  outputs y
  loss y
)";
constexpr PassFit kFit{true, 4e-6, 2e-12, 50e-12};

double seconds(OpClass, double flops, double bytes) {
  return testing::seconds_of(kFit, flops, bytes);
}

DeviceProfile measured(const std::vector<std::int64_t>& samples = {2, 4, 8}) {
  return measured_device("cpu", graph_of(kGraph), samples, seconds, seconds);
}

/// A kind without datasheet figures.
Cluster bare() {
  Cluster cluster = cluster_of("kind cpu\nhost a cpu 1\n");
  cluster.kinds[0].memory_bandwidth = 0;
  return cluster;
}

Result<CostTable> make_table(const Graph& graph, const Cluster& cluster,
                             const Training& training = {}) {
  Result<Calibrated> calibrated = calibrate(cluster);
  AGPCS_CHECK(calibrated.ok(), "{}", calibrated.status().message());
  return CostTable::make(graph, calibrated->cluster, training);
}

CostTable table_of(const Graph& graph, const Cluster& cluster, const Training& training = {}) {
  Result<CostTable> table = make_table(graph, cluster, training);
  AGPCS_CHECK(table.ok(), "{}", table.status().message());
  return *std::move(table);
}

/// Forward seconds of `a` at `samples` when it was measured with those times.
double interpolated(const std::vector<std::pair<std::int64_t, double>>& points,
                    std::int64_t samples) {
  const Graph graph = graph_of(kGraph);
  DeviceProfile device = measured();
  MeasuredOperator& a = device.operators[0];
  a.points.clear();
  for (const auto& [n, time] : points) {
    a.points.push_back({n, op_cost(graph, 0, n, Precision::kFp32), {time, 0}, {time / 2, 0}});
  }
  const OpSeconds s = table_of(graph, with_device(bare(), device)).seconds(0, 0, samples);
  EXPECT_DOUBLE_EQ(s.backward, s.forward / 2);
  return s.forward;
}

TEST(ProfiledCostTable, SaysExactlyWhatWasMeasured) {
  EXPECT_EQ(interpolated({{2, 0.3}, {4, 0.7}, {16, 0.9}}, 2), 0.3);
  EXPECT_EQ(interpolated({{2, 0.3}, {4, 0.7}, {16, 0.9}}, 4), 0.7);
  EXPECT_EQ(interpolated({{2, 0.3}, {4, 0.7}, {16, 0.9}}, 16), 0.9);
}

TEST(ProfiledCostTable, GoesStraightBetweenMeasurements) {
  EXPECT_DOUBLE_EQ(interpolated({{2, 0.3}, {4, 0.7}, {16, 0.9}}, 3), 0.5);
  EXPECT_DOUBLE_EQ(interpolated({{2, 0.3}, {4, 0.7}, {16, 0.9}}, 10), 0.8);
  EXPECT_DOUBLE_EQ(interpolated({{2, 0.7}, {4, 0.3}, {16, 0.9}}, 3), 0.5);
}

TEST(ProfiledCostTable, GoesOnBeyondTheLastMeasurementButNeverDown) {
  EXPECT_DOUBLE_EQ(interpolated({{2, 0.3}, {4, 0.7}, {16, 1.3}}, 32), 2.1);
  EXPECT_DOUBLE_EQ(interpolated({{2, 0.3}, {4, 0.7}, {16, 0.6}}, 32), 0.6);
}

TEST(ProfiledCostTable, GoesBackBeforeTheFirstMeasurementButNotBelowItsShare) {
  EXPECT_DOUBLE_EQ(interpolated({{4, 0.7}, {8, 0.9}}, 2), 0.6);
  EXPECT_DOUBLE_EQ(interpolated({{4, 0.4}, {8, 1.2}}, 1), 0.1);  // the line is negative there
  EXPECT_DOUBLE_EQ(interpolated({{4, 0.4}, {8, 0.2}}, 1), 0.4);
}

TEST(ProfiledCostTable, GrowsFromASingleMeasurementAsTheFitDoes) {
  const Graph graph = graph_of(kGraph);
  DeviceProfile once = measured({1, 2, 4, 8, 16, 32, 64});
  DeviceProfile never = once;
  once.operators[0].points = {once.operators[0].points[3]};  // 8 samples
  once.operators[0].points[0].forward.seconds = 3;           // an outlier to the fit
  never.operators.erase(never.operators.begin());
  const CostTable table = table_of(graph, with_device(bare(), once));
  const CostTable fitted = table_of(graph, with_device(bare(), never));
  EXPECT_EQ(table.seconds(0, 0, 8).forward, 3);
  const double grown = fitted.seconds(0, 0, 16).forward / fitted.seconds(0, 0, 8).forward;
  EXPECT_GT(grown, 1.01);
  EXPECT_NEAR(table.seconds(0, 0, 16).forward, 3 * grown, 1e-6);
}

/// Without the second product, the second activation and the softmax.
DeviceProfile without_the_rest() {
  DeviceProfile device = measured({1, 2, 4, 8});
  device.operators.resize(2);
  return device;
}

TEST(ProfiledCostTable, FitsOperatorsThatWereNotMeasured) {
  const Graph graph = graph_of(kGraph);
  const CostTable table = table_of(graph, with_device(bare(), without_the_rest()));
  // Sizes grow with the samples alone, so that the fit is only exact for what grows like them.
  const OpCost cost = op_cost(graph, 3, 2, Precision::kFp32);
  const double expected = testing::seconds_of(kFit, cost.forward_flops, cost.forward_bytes);
  EXPECT_NEAR(table.seconds(0, 3, 2).forward, expected, 1e-6 * expected);
  const Coverage coverage = table.coverage(0, 4);
  EXPECT_EQ(coverage.operators, 5);
  EXPECT_EQ(coverage.measured, 2);
  EXPECT_EQ(coverage.fitted, 3);
  EXPECT_EQ(coverage.datasheet, 0);
  const double known = table.seconds(0, 0, 4).forward + table.seconds(0, 0, 4).backward +
                       table.seconds(0, 1, 4).forward + table.seconds(0, 1, 4).backward;
  EXPECT_NEAR(coverage.measured_fraction_of_seconds, known * table.speed(0, 4) / 4, 1e-12);
}

TEST(ProfiledCostTable, TakesTheDatasheetForAClassThatWasNotMeasured) {
  const Graph graph = graph_of(kGraph);
  const Cluster sheet = cluster_of("kind cpu fp32=1e12 bandwidth=1e9 launch=0\nhost a cpu 1\n");
  const CostTable table = table_of(graph, with_device(sheet, without_the_rest()));
  EXPECT_EQ(table.coverage(0, 4).datasheet, 1);  // the softmax
  EXPECT_EQ(table.coverage(0, 4).fitted, 2);
  EXPECT_EQ(table.seconds(0, 4, 4).forward, table_of(graph, sheet).seconds(0, 4, 4).forward);
}

TEST(ProfiledCostTable, CoversEverythingOfAModelThatWasProfiled) {
  const Graph graph = graph_of(kGraph);
  const Coverage coverage = table_of(graph, with_device(bare(), measured())).coverage(0, 5);
  EXPECT_EQ(coverage.operators, 5);
  EXPECT_EQ(coverage.measured, 5);
  EXPECT_DOUBLE_EQ(coverage.measured_fraction_of_seconds, 1);
  const Coverage none =
      table_of(graph, cluster_of("kind cpu fp32=1e12\nhost a cpu 1\n")).coverage(0, 5);
  EXPECT_EQ(none.datasheet, 5);
  EXPECT_EQ(none.measured_fraction_of_seconds, 0);
}

TEST(ProfiledCostTable, RefusesAProfileOfOtherModels) {
  Graph graph = graph_of(R"(
    input x [n,10]
    parameter w [10,10]
    y = MatMul(x, w) [n,10]
    outputs y
    loss y
  )");
  graph.name = "other";
  DeviceProfile device = measured();
  device.models = {"lenet", "resnet50"};
  const Result<CostTable> table = make_table(graph, with_device(bare(), device));
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(table.status().message(),
            "lab.yaml: error: device 'cpu' has none of the operators of model 'other', which is to "
            "be planned for kind 'cpu'; it was profiled with: lenet, resnet50\n"
            "  hint: profile this model, too, and merge the files (agpcs-profile --merge)");
}

TEST(ProfiledCostTable, FitsAModelToAProfileThatNamesNoModels) {
  const Graph graph = graph_of(R"(
    input x [n,10]
    parameter w [10,10]
    y = MatMul(x, w) [n,10]
    outputs y
    loss y
  )");
  DeviceProfile device = measured();
  device.models = {};
  const Coverage coverage = table_of(graph, with_device(bare(), device)).coverage(0, 5);
  EXPECT_EQ(coverage.measured, 0);
  EXPECT_EQ(coverage.fitted, 1);
}

TEST(ProfiledCostTable, KnowsAMeasuredPartByItsMeasurementAlone) {
  Graph graph = graph_of(R"(
    input x [n,10]
    parameter w [10,10]
    y = MatMul(x, w) [n,10]
    z = Measured(y) [n,10]
    outputs z
    loss z
  )");
  graph.ops[1].domain = "agpcs";
  const std::string refused =
      "device kind 'cpu' has no measurement of operator '" + graph.ops[1].name +
      "', and the times of an agpcs.Measured are "
      "known by measurement alone\n"
      "  hint: plan with the cluster file and the profile that were written with this model";
  const Cluster sheet = cluster_of("kind cpu fp32=1e12\nhost a cpu 1\n");
  EXPECT_EQ(make_table(graph, sheet).status().message(), refused);
  DeviceProfile device = measured();
  device.operators.front().signature = op_signature(graph, 0);
  EXPECT_EQ(make_table(graph, with_device(bare(), device)).status().message(), refused);
  device.operators.push_back(device.operators.front());
  device.operators.back().signature = op_signature(graph, 1);
  EXPECT_TRUE(make_table(graph, with_device(bare(), device)).ok());
}

TEST(ProfiledCostTable, RefusesAProfileOfAnotherPrecision) {
  Training training;
  training.precision = Precision::kFp16;
  const Result<CostTable> table =
      make_table(graph_of(kGraph), with_device(bare(), measured()), training);
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().message(),
            "lab.yaml: error: device 'cpu' of kind 'cpu' was profiled in fp32, the training is in "
            "fp16\n  hint: profile in fp16, or train in fp32");
}

DeviceProfile with_updates() {
  DeviceProfile device = measured();
  device.updates = {{"sgd", 1000, 2, {2 * 3e-6 + 1000 * 1e-9, 0}, {1000 * 5e-10, 0}},
                    {"sgd", 1000000, 2, {2 * 3e-6 + 1000000 * 1e-9, 0}, {1000000 * 5e-10, 0}}};
  return device;
}

TEST(ProfiledCostTable, UpdatesTakeWhatWasFittedToThem) {
  const Graph graph = graph_of(kGraph);
  const CostTable table = table_of(graph, with_device(bare(), with_updates()));
  EXPECT_NEAR(table.update_seconds(0, 5000, 3), 3 * 3e-6 + 5000 * 1e-9, 1e-11);
  EXPECT_NEAR(table.begin_seconds(0, 5000), 5000 * 5e-10, 1e-12);
}

TEST(ProfiledCostTable, AnUpdateOfAnotherOptimizerIsScaledByItsBytes) {
  const Graph graph = graph_of(kGraph);
  Training adam;
  adam.optimizer.kind = OptimizerKind::kAdam;
  const CostTable table = table_of(graph, with_device(bare(), with_updates()), adam);
  EXPECT_NEAR(table.update_seconds(0, 5000, 3), (3 * 3e-6 + 5000 * 1e-9) * 28 / 12, 1e-11);
}

TEST(ProfiledCostTable, AnUpdateThatWasNotMeasuredIsElementwise) {
  const Graph graph = graph_of(kGraph);
  const Result<Calibrated> calibrated = calibrate(with_device(bare(), measured()));
  ASSERT_TRUE(calibrated.ok());
  const PassFit& elementwise = calibrated->cluster.kinds[0]
                                   .fit.classes[static_cast<std::size_t>(OpClass::kElementwise)]
                                   .forward;
  const CostTable table = table_of(graph, with_device(bare(), measured()));
  EXPECT_DOUBLE_EQ(table.update_seconds(0, 5000, 3),
                   3 * elementwise.overhead + 5000 * 12 * elementwise.per_byte);
  EXPECT_GT(table.update_seconds(0, 5000, 3), 0);
}

}  // namespace
}  // namespace agpcs
