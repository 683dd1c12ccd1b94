// SPDX-License-Identifier: Apache-2.0
// CostTable on kinds with a quick profile, and what its corrections are expected to be wrong by.
#include "cost_model/fit/calibrate.h"
#include "cost_model/fit/corrections.h"
#include "cost_model/kernel/operator.h"
#include "cost_model/kernel/terms.h"
#include "cost_model/step/cost_table.h"
#include "cost_model/step/team/member_costs.h"
#include "ir/graph/split/split.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/support/builders.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;
using testing::with_device;

/// Shapes that no model below has.
constexpr const char* kProbes = R"(
  input x [n,64]
  parameter w1 [64,32]
  parameter w2 [32,128]
  parameter w3 [128,96]
  a = MatMul(x, w1) [n,32]
  b = Relu(a) [n,32]
  c = MatMul(b, w2) [n,128]
  d = Relu(c) [n,128]
  e = MatMul(d, w3) [n,96]
  f = Tanh(e) [n,96]
  y = Softmax(f) [n,96]
  outputs y
  loss y
)";
constexpr const char* kModel = R"(
  input x [n,40]
  parameter w [40,200]
  h = MatMul(x, w) [n,200]
  y = Relu(h) [n,200]
  outputs y
  loss y
)";

/// Coefficients of the groups' terms; those of a product are about 50 GFLOP/s.
std::vector<double> coefficients_of(const std::string& group) {
  if (group == "product") return {5e-6, 2e-11, 1e-10, 2e-10, 3e-10, 0};
  if (group == "Relu") return {3e-6, 0, 4e-11, 0};
  return {8e-6, 1e-10, 2e-10, 0};
}

constexpr double kTwice = 2;  // what a backward pass takes / a forward pass

DeviceProfile quick_device(const DeviceKind& kind = {}, double model_factor = 1) {
  const auto device = kernel_device(kind, kernel_parameters(), Precision::kFp32);
  const Graph graph = graph_of(kProbes);
  const auto nothing = [](OpClass, double, double) { return 0.0; };
  DeviceProfile profile =
      testing::measured_device("cpu", graph, {1, 2, 4, 8, 16, 32}, nothing, nothing);
  profile.probes = std::move(profile.operators);
  profile.operators.clear();
  profile.models.clear();
  for (MeasuredOperator& probe : profile.probes) {
    const std::optional<Graph> one = graph_of_signature(probe.signature);
    const std::string group = correction_group(*one, 0);
    for (MeasuredOperator::Point& point : probe.points) {
      const OperatorTerms terms = operator_terms(*one, 0, point.samples, point.work, device);
      const bool modelled = device && group == "product";
      const std::vector<double> by =
          modelled ? std::vector<double>{7e-6, model_factor, 0} : coefficients_of(group);
      point.forward.seconds = explained_seconds(terms.forward, point.samples, {by, {}, {}});
      point.backward.seconds =
          kTwice * explained_seconds(terms.backward, point.samples, {by, {}, {}});
    }
  }
  return profile;
}

Cluster bare() {
  Cluster cluster = cluster_of("kind cpu\nhost a cpu 1\n");
  cluster.kinds[0].memory_bandwidth = 0;
  return cluster;
}

CostTable table_of(const Graph& graph, const Cluster& cluster) {
  Training training;
  training.batch = 100;
  Result<Calibrated> calibrated = calibrate(cluster);
  AGPCS_CHECK(calibrated.ok(), "{}", calibrated.status().message());
  Result<CostTable> table = CostTable::make(graph, calibrated->cluster, training);
  AGPCS_CHECK(table.ok(), "{}", table.status().message());
  return *table;
}

double expected(const Graph& graph, OpId op, std::int64_t samples) {
  const OpCost work = op_cost(graph, op, samples, Precision::kFp32);
  const OperatorTerms terms = operator_terms(graph, op, samples, work, std::nullopt);
  return explained_seconds(terms.forward, samples,
                           {coefficients_of(correction_group(graph, op)), {}, {}});
}

TEST(CorrectedCostTable, KnowsOperatorsOfAnyModelByTheirGroups) {
  const Graph graph = graph_of(kModel);
  const CostTable table = table_of(graph, with_device(bare(), quick_device()));
  for (const OpId op : {0, 1}) {
    for (const std::int64_t samples : {1, 3, 48, 96}) {
      const double seconds = expected(graph, op, samples);
      EXPECT_NEAR(table.seconds(0, op, samples).forward, seconds, 1e-6 * seconds) << samples;
    }
  }
  const Coverage coverage = table.coverage(0, 4);
  EXPECT_EQ(coverage.measured, 0);
  EXPECT_EQ(coverage.fitted, 2);
}

TEST(CorrectedCostTable, CorrectsTheKernelModelOfAKindWithProcessors) {
  Cluster cluster = cluster_of(
      "kind cpu memory=16e9 fp32=8.1e12 bandwidth=320e9\n"
      "host a cpu 1\n");
  cluster.kinds[0].processors = {40, 70, "TSMC 12FFN", "GDDR6"};
  const Graph graph = graph_of(kModel);
  const CostTable table =
      table_of(graph, with_device(cluster, quick_device(cluster.kinds[0], 1.5)));
  const auto kernels = kernels_of(graph, 0, 96, Precision::kFp32);
  const auto device = kernel_device(cluster.kinds[0], kernel_parameters(), Precision::kFp32);
  const double model =
      pass_seconds(*device, kernel_parameters(), *kernels, kernels->forward, /*launch=*/0);
  EXPECT_NEAR(table.seconds(0, 0, 96).forward, 7e-6 + 1.5 * model, 1e-9);
}

/// A quick profile that knows how long samples take to load.
DeviceProfile with_inputs(DeviceProfile device) {
  MeasuredOperator input{"Input(fp32[n,64]) -> fp32[n,64]", OpClass::kView, {}};
  for (const std::int64_t n : {1, 2, 4, 8}) {
    const auto bytes = static_cast<double>(n * 64 * 4);
    input.points.push_back({n, {0, 0, bytes, 0}, {1e-6 + 2e-9 * bytes, 0}, {}});
  }
  device.probes.push_back(input);
  return device;
}

TEST(CorrectedCostTable, AMemberThatHasAPartOfTheFirstOperatorWaitsForAllSamples) {
  const Graph
      graph = graph_of(kModel),
      half = graph_of(
          "input x [n,40]\nparameter w [40,100]\nh = MatMul(x, w) [n,100]\ny = Relu(h) [n,100]\n"
          "outputs y\nloss y\n");
  const Result<Calibrated> calibrated = calibrate(with_device(bare(), with_inputs(quick_device())));
  ASSERT_TRUE(calibrated.ok()) << calibrated.status().message();
  Training training;
  training.batch = 100;
  const Result<CostTable> table = CostTable::make(graph, calibrated->cluster, training);
  ASSERT_TRUE(table.ok()) << table.status().message();
  MemberCosts members(graph, calibrated->cluster, training, *table);
  const std::vector<OpSplit> splits = splits_of(graph, 0);
  const auto columns = std::find_if(splits.begin(), splits.end(),
                                    [](const OpSplit& split) { return split.name == "columns"; });
  ASSERT_NE(columns, splits.end());
  const MemberOp part = {0, static_cast<int>(columns - splits.begin()), 100};
  EXPECT_NEAR(members.seconds(0, part, 8).forward, expected(half, 0, 8) + 1e-6 + 2e-9 * 8 * 40 * 4,
              1e-10);
  const MemberOp other = {1, kNone, 0};
  EXPECT_NEAR(members.seconds(0, other, 8).forward, expected(graph, 1, 8), 1e-10);
}

TEST(CorrectedCostTable, TheFirstOperatorWaitsForTheSamples) {
  const DeviceProfile device = with_inputs(quick_device());
  const Graph graph = graph_of(kModel);
  const CostTable table = table_of(graph, with_device(bare(), device));
  EXPECT_NEAR(table.seconds(0, 0, 8).forward, expected(graph, 0, 8) + 1e-6 + 2e-9 * 8 * 40 * 4,
              1e-10);
  EXPECT_NEAR(table.seconds(0, 1, 8).forward, expected(graph, 1, 8), 1e-10);
}

TEST(CorrectedCostTable, KnowsNumbersOfSamplesThatTakeAnotherAlgorithm) {
  DeviceProfile device = quick_device();
  for (MeasuredOperator& probe : device.probes) {
    if (probe.op_class != OpClass::kMatmul) continue;
    for (MeasuredOperator::Point& point : probe.points) {
      if (point.samples >= 16) point.forward.seconds /= 1.8;  // a faster library
    }
  }
  const Graph graph = graph_of(kModel);
  const CostTable table = table_of(graph, with_device(bare(), device));
  for (const std::int64_t samples : {1, 8, 16, 32}) {
    const double seconds = expected(graph, 0, samples) / (samples >= 16 ? 1.8 : 1);
    EXPECT_NEAR(table.seconds(0, 0, samples).forward, seconds, 0.1 * seconds) << samples;
  }
}

TEST(ExplainedSeconds, GoStraightBetweenFactorsAndStayBeyond) {
  const CorrectionFit fit = {{2, 3}, {4, 16}, {1, 0.5}};
  EXPECT_DOUBLE_EQ(explained_seconds({1, 10}, 1, fit), 32);
  EXPECT_DOUBLE_EQ(explained_seconds({1, 10}, 4, fit), 32);
  EXPECT_DOUBLE_EQ(explained_seconds({1, 10}, 8, fit), 24);
  EXPECT_DOUBLE_EQ(explained_seconds({1, 10}, 99, fit), 16);
  EXPECT_DOUBLE_EQ(explained_seconds({}, 4, fit), 0);
}

TEST(CorrectedCostTable, MeasuredOperatorsAndTheirFitsComeFirst) {
  const auto second = [](OpClass, double, double) { return 1.0; };
  const Graph graph = graph_of(kModel);
  DeviceProfile device = testing::measured_device("cpu", graph, {1, 2}, second, second);
  device.probes = quick_device().probes;
  const CostTable table = table_of(graph, with_device(bare(), device));
  EXPECT_DOUBLE_EQ(table.seconds(0, 0, 2).forward, 1);
  // Of other operators, classes with too few measurements take the quick profile's groups.

  device.models.clear();
  device.operators.resize(1);  // the product
  const Graph wide = graph_of(
      "input x [n,8]\nparameter w [8,16]\nh = MatMul(x, w) [n,16]\ny = Relu(h) [n,16]\n"
      "outputs y\nloss y\n");
  const CostTable mixed = table_of(wide, with_device(bare(), device));
  EXPECT_NEAR(mixed.seconds(0, 1, 8).forward, expected(wide, 1, 8), 1e-10);
}

TEST(CorrectedCostTable, FloorsBoundEveryWayToSplitTheSamples) {
  const Graph graph = graph_of(kModel);
  const CostTable table = table_of(graph, with_device(bare(), quick_device()));
  for (const OpId op : {0, 1}) {
    for (const int most : {1, 2, 5, 24, 37, 100}) {
      const OpFloor floor = table.floor(0, op, most);
      std::vector<double> least(static_cast<std::size_t>(most) + 1, 0);
      for (int n = 1; n <= most; ++n) {
        const double seconds = table.seconds(0, op, n).sum();
        const double slack = 1e-12 * seconds;
        EXPECT_LE(floor.least_per_sample.sum() * n, seconds + slack);
        EXPECT_LE(floor.fixed.sum() + floor.per_sample.sum() * n, seconds + slack);
        double best = 1e30;
        for (int pass = 1; pass <= n; ++pass) {
          best = std::min(
              best, least[static_cast<std::size_t>(n - pass)] + table.seconds(0, op, pass).sum());
        }
        least[static_cast<std::size_t>(n)] = best;
      }
      EXPECT_LE(table.least_seconds(0, op, most, most).sum(), least.back() * (1 + 1e-12));
    }
  }
}

TEST(ExpectedErrors, AreSmallWhereTheTermsExplainEverything) {
  const ExpectedErrors errors = expected_errors(quick_device(), {});
  const auto product = std::find_if(errors.groups.begin(), errors.groups.end(),
                                    [](const auto& g) { return g.group == "product"; });
  ASSERT_NE(product, errors.groups.end());
  EXPECT_EQ(product->shapes, 3U);
  EXPECT_LT(product->forward, 0.1);  // two shapes leave open what some terms of a third count for
}

TEST(ExpectedErrors, AreOfShapesThatWereLeftOut) {
  DeviceProfile device = quick_device();
  for (MeasuredOperator& probe : device.probes) {
    if (probe.signature.find("fp32[n,32]) -> ") == std::string::npos &&
        probe.signature.find("Relu(fp32[n,32]") == std::string::npos) {
      continue;
    }
    for (MeasuredOperator::Point& point : probe.points) point.forward.seconds *= 2;
  }
  const ExpectedErrors errors = expected_errors(device, {});
  const auto relu = std::find_if(errors.groups.begin(), errors.groups.end(),
                                 [](const auto& g) { return g.group == "Relu"; });
  ASSERT_NE(relu, errors.groups.end());
  EXPECT_EQ(relu->shapes, 2U);
  EXPECT_GT(relu->forward, 0.3);  // either shape is predicted from the other alone
}

}  // namespace
}  // namespace agpcs
