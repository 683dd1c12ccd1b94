// SPDX-License-Identifier: Apache-2.0
#include "cost_model/fit/calibrate.h"

#include "cost_model/step/cost_table.h"
#include "ir/base/rng.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/support/builders.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;
using ::testing::HasSubstr;
using testing::measured_device;
using testing::measured_network;
using testing::with_device;
using testing::with_network;

constexpr PassFit kForward{true, 4e-6, 2e-12, 50e-12};
constexpr PassFit kBackward{true, 9e-6, 3e-12, 70e-12};

constexpr const char* kGraph = R"(
  input x [n,64]
  parameter w1 [64,32]
  parameter w2 [32,128]
  parameter w3 [128,512]
  a = MatMul(x, w1) [n,32]
  b = Relu(a) [n,32]
  c = MatMul(b, w2) [n,128]
  d = Tanh(c) [n,128]
  e = MatMul(d, w3) [n,512]
  y = Softmax(e) [n,512]
  outputs y
  loss y
)";

double seconds(OpClass, double flops, double bytes) {
  return testing::seconds_of(kForward, flops, bytes);
}
double backward_seconds(OpClass, double flops, double bytes) {
  return testing::seconds_of(kBackward, flops, bytes);
}

Cluster one_device() { return cluster_of("kind cpu fp32=1e12\nhost a cpu 1\n"); }

Calibrated calibrated(Cluster cluster) {
  Result<Calibrated> result = calibrate(std::move(cluster));
  AGPCS_CHECK(result.ok(), "{}", result.status().message());
  return *std::move(result);
}

const KindFit::Class& class_fit(const Calibrated& c, OpClass op_class) {
  return c.cluster.kinds[0].fit.classes[static_cast<std::size_t>(op_class)];
}

void expect_near(const PassFit& fit, const PassFit& truth) {
  EXPECT_NEAR(fit.overhead, truth.overhead, 1e-6 * truth.overhead);
  EXPECT_NEAR(fit.per_flop, truth.per_flop, 1e-6 * truth.per_flop);
  EXPECT_NEAR(fit.per_byte, truth.per_byte, 1e-6 * truth.per_byte);
}

const FitReport* find_report(const Calibrated& c, const std::string& what) {
  for (const FitReport& report : c.fits) {
    if (report.what == what) return &report;
  }
  return nullptr;
}

TEST(Calibrate, FindsWhatOperatorsOfAClassTakeByTheirWork) {
  const Graph graph = graph_of(kGraph);
  const Calibrated c = calibrated(with_device(
      one_device(), measured_device("cpu", graph, {1, 4, 16, 64}, seconds, backward_seconds)));
  expect_near(class_fit(c, OpClass::kMatmul).forward, kForward);
  expect_near(class_fit(c, OpClass::kMatmul).backward, kBackward);
  EXPECT_TRUE(class_fit(c, OpClass::kMatmul).forward.fitted);
  const FitReport* report = find_report(c, "matmul forward on cpu");
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->points, 12U);
  EXPECT_EQ(report->outliers, 0U);
  EXPECT_LT(report->worst_error, 1e-6);
  EXPECT_TRUE(report->explains());
  EXPECT_EQ(c.warnings, "");
}

TEST(Calibrate, CountsOutliersAndIsNotMisledByThem) {
  const Graph graph = graph_of(kGraph);
  DeviceProfile device =
      measured_device("cpu", graph, {1, 2, 4, 8, 16, 32, 64}, seconds, backward_seconds);
  device.operators[0].points[3].forward.seconds *= 5;
  device.operators[4].points[2].forward.seconds *= 0.1;
  const Calibrated c = calibrated(with_device(one_device(), device));
  expect_near(class_fit(c, OpClass::kMatmul).forward, kForward);
  EXPECT_EQ(find_report(c, "matmul forward on cpu")->outliers, 2U);
}

TEST(Calibrate, TakesOtherClassesOfTheSortForAClassWithTooFewSizes) {
  const Graph graph = graph_of(kGraph);
  DeviceProfile device = measured_device("cpu", graph, {1, 4, 16}, seconds, backward_seconds);
  for (MeasuredOperator& op : device.operators) {
    if (op.op_class == OpClass::kSoftmax) op.points.resize(1);
  }
  const Calibrated c = calibrated(with_device(one_device(), device));
  const KindFit::Class& softmax = class_fit(c, OpClass::kSoftmax);
  EXPECT_FALSE(softmax.forward.fitted);
  EXPECT_EQ(find_report(c, "softmax forward on cpu"), nullptr);
  for (const MeasuredOperator& op : device.operators) {  // as all memory-bound ones were made
    for (const MeasuredOperator::Point& point : op.points) {
      if (bound_by_arithmetic(op.op_class)) continue;
      EXPECT_NEAR(
          testing::seconds_of(softmax.forward, point.work.forward_flops, point.work.forward_bytes),
          point.forward.seconds, 1e-6 * point.forward.seconds);
    }
  }
  EXPECT_FALSE(class_fit(c, OpClass::kConvolution).forward.fitted);
  expect_near(class_fit(c, OpClass::kConvolution).forward, kForward);
}

TEST(Calibrate, SaysWhichFitsDoNotExplainTheirMeasurements) {
  const Graph graph = graph_of(kGraph);
  Rng rng(3);
  DeviceProfile device = measured_device("cpu", graph, {1, 4, 16, 64}, seconds, backward_seconds);
  for (MeasuredOperator& op : device.operators) {
    if (op.op_class != OpClass::kMatmul) continue;
    for (MeasuredOperator::Point& point : op.points) point.forward.seconds = 1 + 9 * rng.uniform();
  }
  const Calibrated c = calibrated(with_device(one_device(), device));
  const FitReport* report = find_report(c, "matmul forward on cpu");
  ASSERT_NE(report, nullptr);
  EXPECT_FALSE(report->explains());
  EXPECT_TRUE(report->stands_in);
  EXPECT_EQ(c.warnings, "");  // what was measured counts, not its fit
}

TEST(Calibrate, WarnsOfFitsThatCountAndDoNotExplainTheirMeasurements) {
  const Graph graph = graph_of(kGraph);
  Rng rng(3);
  DeviceProfile device = measured_device("cpu", graph, {1, 4, 16, 64}, seconds, backward_seconds);
  device.updates.clear();
  for (int i = 1; i <= 8; ++i) {
    MeasuredUpdate update{"sgd", 1000 * i, i, {}, {}};
    update.update.seconds = update.begin.seconds = 1 + 9 * rng.uniform();
    device.updates.push_back(update);
  }
  const Calibrated c = calibrated(with_device(one_device(), device));
  const auto unexplained = std::find_if(c.fits.begin(), c.fits.end(),
                                        [](const FitReport& fit) { return !fit.explains(); });
  ASSERT_NE(unexplained, c.fits.end());
  EXPECT_FALSE(unexplained->stands_in);
  EXPECT_THAT(c.warnings, ::testing::StartsWith(
                              "lab.yaml: warning: measurements that their fit does not explain: "));
  EXPECT_THAT(c.warnings, ::testing::HasSubstr(unexplained->what));
}

TEST(Calibrate, RefusesADeviceWithoutOperators) {
  DeviceProfile device;
  device.name = "cpu";
  const Result<Calibrated> c = calibrate(with_device(one_device(), device));
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().message(),
            "lab.yaml: error: device 'cpu' has no operator that was measured, which kind 'cpu' "
            "needs\n  hint: profile a model on it");
}

MeasuredUpdate update_of(std::int64_t elements, std::int64_t tensors, double per_tensor,
                         double per_element, double begin) {
  return {
      "adam",
      elements,
      tensors,
      {per_tensor * static_cast<double>(tensors) + per_element * static_cast<double>(elements), 0},
      {begin * static_cast<double>(elements), 0}};
}

TEST(Calibrate, TellsWhatATensorAndWhatAnElementAddsToAnUpdate) {
  DeviceProfile device =
      measured_device("cpu", graph_of(kGraph), {1, 4, 16}, seconds, backward_seconds);
  device.updates = {update_of(1'000, 8, 3e-6, 2e-9, 1e-10),
                    update_of(25'000'000, 160, 3e-6, 2e-9, 1e-10)};
  const Calibrated c = calibrated(with_device(one_device(), device));
  const KindFit& fit = c.cluster.kinds[0].fit;
  ASSERT_EQ(fit.updates.size(), 1U);
  EXPECT_EQ(fit.updates[0].optimizer, "adam");
  EXPECT_NEAR(fit.updates[0].per_tensor, 3e-6, 3e-12);
  EXPECT_NEAR(fit.updates[0].per_element, 2e-9, 2e-15);
  EXPECT_NEAR(fit.begin_per_element, 1e-10, 1e-16);
  EXPECT_NE(find_report(c, "adam update on cpu"), nullptr);
  EXPECT_NE(find_report(c, "begin of a step on cpu"), nullptr);
}

TEST(Calibrate, DividesTheUpdateOfOneModelAsElementwiseOperatorsAreDivided) {
  DeviceProfile device = measured_device(
      "cpu", graph_of(kGraph), {1, 4, 16, 64},
      [](OpClass, double, double bytes) { return 4e-6 + 50e-12 * bytes; }, backward_seconds);
  // Twice what tensors at 4 us and 28 bytes an element at 50 ps would take.
  device.updates = {update_of(1'000'000, 10, 8e-6, 2 * 28 * 50e-12, 0)};
  const Calibrated c = calibrated(with_device(one_device(), device));
  const UpdateFit& fit = c.cluster.kinds[0].fit.updates[0];
  // Elementwise FLOPs are as good as bytes, so that each takes a part of what an element needs.
  EXPECT_GT(fit.per_tensor, 0);
  EXPECT_NEAR(10 * fit.per_tensor + 1e6 * fit.per_element, device.updates[0].update.seconds,
              1e-6 * device.updates[0].update.seconds);
}

constexpr const char* kHosts =
    "kind cpu fp32=1e12\n"
    "host a cpu 2 bandwidth=8e9 latency=2e-6 nic=1e9 nic-latency=20e-6\n"
    "host b cpu 1 bandwidth=4e9 latency=3e-6 nic=2e9 nic-latency=30e-6\n"
    "host c cpu 2 bandwidth=6e9 latency=1e-6 nic=0.5e9 nic-latency=45e-6\n";

/// Figures that nobody would guess.
Cluster unknown(Cluster cluster) {
  for (Link& link : cluster.links) {
    link.latency = 1;
    link.bandwidth = 1;
  }
  return cluster;
}

TEST(Calibrate, FindsTheLatencyAndBandwidthOfEveryRoute) {
  const Cluster truth = cluster_of(kHosts);
  const Calibrated c = calibrated(with_network(unknown(truth), measured_network(truth)));
  for (DeviceId from = 0; from < truth.device_count(); ++from) {
    for (DeviceId to = 0; to < truth.device_count(); ++to) {
      if (from == to) continue;
      for (const std::int64_t bytes : {1, 100'000, 1'000'000'000}) {
        const double expected = lone_seconds(truth, transfer(truth, from, to, bytes));
        EXPECT_NEAR(lone_seconds(c.cluster, transfer(c.cluster, from, to, bytes)), expected,
                    1e-6 * expected);
      }
    }
  }
  EXPECT_EQ(c.cluster.links.size(), truth.links.size());
  const FitReport* report = find_report(c, "messages from a/0 to c/1");
  ASSERT_NE(report, nullptr);
  EXPECT_LT(report->worst_error, 1e-6);
}

TEST(Calibrate, GivesEveryLinkTheLargestBandwidthOfItsPaths) {
  const Cluster truth = cluster_of(kHosts);
  const Calibrated c = calibrated(with_network(unknown(truth), measured_network(truth)));
  const auto bandwidth = [&](const std::string& name) {
    for (const Link& link : c.cluster.links) {
      if (link.name == name) return link.bandwidth;
    }
    return 0.0;
  };
  EXPECT_NEAR(bandwidth("a/0 out"), 8e9, 8e3);    // to a/1
  EXPECT_NEAR(bandwidth("a nic out"), 1e9, 1e3);  // its own
  EXPECT_NEAR(bandwidth("b nic out"), 1e9, 1e3);  // a's is slower, and the fastest that b reaches
  EXPECT_NEAR(bandwidth("c nic in"), 0.5e9, 0.5e3);  // its own
}

// As behind a token bucket: the first packets of a message pass at once.
TEST(Calibrate, TakesTheBandwidthOfLongMessagesAndTheLatencyOfShortOnes) {
  const Cluster truth = cluster_of("kind cpu fp32=1e12\nhost a cpu 2\n");
  Profile profile = measured_network(truth);
  for (MeasuredPath& path : profile.paths) {
    path.points.clear();
    for (double bytes = 1024; bytes < 20e6; bytes *= 4) {
      const double seconds = 100e-6 + std::max(0.0, bytes - 10e3) / 36e6;
      path.points.push_back({static_cast<std::int64_t>(bytes), {seconds, 0}});
    }
  }
  const Calibrated c = calibrated(with_network(unknown(truth), profile));
  const double long_one = lone_seconds(c.cluster, transfer(c.cluster, 0, 1, 16'000'000));
  EXPECT_NEAR(long_one, 16e6 / 36e6, 0.02 * 16e6 / 36e6);
  const double short_one = lone_seconds(c.cluster, transfer(c.cluster, 0, 1, 1024));
  EXPECT_GT(short_one, 40e-6);  // by its bytes alone it would take 28 us
  EXPECT_LT(short_one, 160e-6);
}

TEST(Calibrate, LeavesLinksWithoutAProfileAsTheyAre) {
  const Cluster truth = cluster_of(kHosts);
  Cluster cluster = with_network(truth, measured_network(truth));
  cluster.links[0].profile = {};
  cluster.links[0].latency = 123;
  EXPECT_EQ(calibrated(cluster).cluster.links[0].latency, 123);
}

TEST(Calibrate, RefusesMessagesThatGiveNoBandwidth) {
  const Cluster truth = cluster_of("kind cpu fp32=1e12\nhost a cpu 2\n");
  Profile profile = measured_network(truth);
  for (MeasuredMessages& m : profile.paths[0].points) m.time.seconds = 1e-3;
  EXPECT_EQ(
      calibrate(with_network(truth, profile)).status().message(),
      "lab.yaml: error: messages from a/0 to a/1 take as long whatever their size, so that no "
      "bandwidth follows from them\n  hint: measure more and larger sizes");
  profile.paths[0].points.resize(1);
  EXPECT_THAT(calibrate(with_network(truth, profile)).status().message(),
              HasSubstr("messages from a/0 to a/1 are all of one size, so that"));
}

TEST(Calibrate, FindsTheOverheadAndTheStretchOfAllReduces) {
  Cluster truth = cluster_of(kHosts);
  truth.collectives = {CollectiveFit{12e-6, 1.7}, CollectiveFit{30e-6, 0.8},
                       CollectiveFit{20e-6, 1.2}};
  const Profile profile = measured_network(truth, {{AllReduce::kRing, {0, 1, 2, 3, 4}},
                                                   {AllReduce::kRing, {0, 2}},
                                                   {AllReduce::kHierarchical, {0, 1, 2, 3, 4}},
                                                   {AllReduce::kTree, {0, 1, 2, 3, 4}}});
  const Calibrated c = calibrated(with_network(unknown(truth), profile));
  for (std::size_t i = 0; i < truth.collectives.size(); ++i) {
    EXPECT_NEAR(c.cluster.collectives[i].step_overhead, truth.collectives[i].step_overhead, 1e-10);
    EXPECT_NEAR(c.cluster.collectives[i].stretch, truth.collectives[i].stretch, 1e-5);
  }
  EXPECT_LT(find_report(c, "ring all-reduce")->worst_error, 1e-5);
  EXPECT_EQ(find_report(c, "ring all-reduce")->points, 10U);
}

TEST(Calibrate, GivesAlgorithmsWithoutMeasurementsThoseOfTheFirstThatHasSome) {
  Cluster truth = cluster_of(kHosts);
  truth.collectives[0] = {12e-6, 1.7};
  const Calibrated c =
      calibrated(with_network(truth, measured_network(truth, {{AllReduce::kRing, {0, 2, 3}}})));
  for (const CollectiveFit& fit : c.cluster.collectives) {
    EXPECT_NEAR(fit.step_overhead, 12e-6, 1e-10);
    EXPECT_NEAR(fit.stretch, 1.7, 1e-5);
  }
}

TEST(Calibrate, LeavesOutAllReducesOverDevicesOfOtherClusters) {
  Cluster truth = cluster_of(kHosts);
  truth.collectives[0] = {12e-6, 1.7};
  Profile profile =
      measured_network(truth, {{AllReduce::kRing, {0, 1, 2}}, {AllReduce::kRing, {2, 3, 4}}});
  profile.collectives[0].devices[0] = "z/0";
  EXPECT_EQ(find_report(calibrated(with_network(truth, profile)), "ring all-reduce")->points, 5U);
  profile.collectives[1].devices[0] = "z/1";
  const Result<Calibrated> none = calibrate(with_network(truth, profile));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().message(),
            "lab.yaml: error: no all-reduce was measured over devices of cluster 'test' alone: the "
            "first is over z/0, a/1, b/0, the cluster has a/0, ...\n"
            "  hint: profile this cluster, or do not take its network from this file");
}

TEST(Calibrate, ChangesNothingWithoutProfiles) {
  const Cluster cluster = cluster_of(kHosts);
  const Calibrated c = calibrated(cluster);
  EXPECT_EQ(print_cluster(c.cluster), print_cluster(cluster));
  EXPECT_TRUE(c.fits.empty());
}

}  // namespace
}  // namespace agpcs
