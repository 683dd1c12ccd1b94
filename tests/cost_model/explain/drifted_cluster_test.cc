// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/drifted_cluster.h"

#include "cost_model/fit/calibrate.h"
#include "cost_model/step/cost_table.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/support/builders.h"

#include <agpcs/digest.h>

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;

constexpr char kTwoHosts[] =
    "kind fast fp32=1e12 bandwidth=100e9\n"
    "host a fast 2 nic=1e9\n"
    "host b fast 1 nic=2e9\n";
constexpr char kGraph[] = R"(
  input x [n,64]
  parameter w [64,32]
  a = MatMul(x, w) [n,32]
  y = Softmax(a) [n,32]
  outputs y
  loss y
)";

double forward(const Graph& graph, const Cluster& cluster, DeviceId device) {
  const CostTable costs = *CostTable::make(graph, cluster, Training());
  return costs.seconds(cluster.devices[static_cast<std::size_t>(device)].kind, 0, 64).forward;
}

TEST(DriftedCluster, WithoutDriftIsTheClusterItself) {
  const Cluster cluster = cluster_of(kTwoHosts);
  EXPECT_EQ(print_cluster(drifted_cluster(cluster, {})), print_cluster(cluster));
  EXPECT_EQ(print_drift(cluster, {}), "");
}

TEST(DriftedCluster, OnlyTheDeviceThatSlowedDownHasANewKind) {
  const Cluster cluster = cluster_of(kTwoHosts);
  const Cluster drifted = drifted_cluster(cluster, {{{1, 2.5}}, {}});
  EXPECT_TRUE(verify_cluster(drifted).ok());
  EXPECT_EQ(drifted.kind_of(0).name, "fast");
  EXPECT_EQ(drifted.kind_of(1).name, "fast-x2.5");
  EXPECT_EQ(drifted.kind_of(2).name, "fast");
  const Graph graph = graph_of(kGraph);
  EXPECT_DOUBLE_EQ(forward(graph, drifted, 0), forward(graph, cluster, 0));
  EXPECT_NEAR(forward(graph, drifted, 1), 2.5 * forward(graph, cluster, 1), 1e-12);
  EXPECT_NE(digest_of(print_cluster(drifted)), digest_of(print_cluster(cluster)));
}

TEST(DriftedCluster, DevicesThatSlowedDownAlikeShareAKind) {
  const Cluster drifted = drifted_cluster(cluster_of(kTwoHosts), {{{0, 2}, {1, 2}, {2, 3}}, {}});
  EXPECT_EQ(drifted.devices[0].kind, drifted.devices[1].kind);
  EXPECT_EQ(drifted.kinds.size(), 3U);
}

TEST(DriftedCluster, WhatWasMeasuredOfADeviceTakesLongerToo) {
  const Graph graph = graph_of(kGraph);
  const auto seconds = [](OpClass, double flops, double) { return 1e-5 + flops * 1e-12; };
  Cluster cluster =
      testing::with_device(cluster_of("kind cpu\nhost a cpu 2\n"),
                           testing::measured_device("cpu", graph, {32, 64, 128}, seconds, seconds));
  cluster = calibrate(cluster)->cluster;
  const Cluster drifted = drifted_cluster(cluster, {{{1, 2.5}}, {}});
  EXPECT_TRUE(verify_cluster(drifted).ok());
  EXPECT_EQ(verify_profile(drifted.profiles.back()).message(), "");
  EXPECT_DOUBLE_EQ(forward(graph, drifted, 0), forward(graph, cluster, 0));
  EXPECT_DOUBLE_EQ(forward(graph, drifted, 1), 2.5 * forward(graph, cluster, 1));
  EXPECT_NE(digest_of(print_cluster(drifted)), digest_of(print_cluster(cluster)));
}

TEST(DriftedCluster, ALinkThatChangedHasFiguresOfItsOwn) {
  const Cluster cluster = cluster_of(kTwoHosts);
  LinkId nic = 0;
  while (cluster.links[static_cast<std::size_t>(nic)].name != "b nic in") ++nic;
  const HardwareDrift drift = {{}, {{nic, {4, 2}}}};
  const Cluster drifted = drifted_cluster(cluster, drift);
  const Link& link = drifted.links[static_cast<std::size_t>(nic)];
  EXPECT_DOUBLE_EQ(link.bandwidth, 0.5e9);
  EXPECT_DOUBLE_EQ(link.latency, 2 * cluster.links[static_cast<std::size_t>(nic)].latency);
  EXPECT_EQ(print_drift(cluster, drift),
            "link 'b nic in' takes 4 times as long for a byte, 2 times the latency\n");
}

TEST(DriftedCluster, WhatIsBackIsNoDrift) {
  const HardwareDrift slow = {{{0, 2.5}, {1, 3}}, {{2, {4, 1}}}};
  const HardwareDrift back = {{{0, 0.41}}, {{2, {0.26, 1}}}};
  EXPECT_EQ(compose(slow, back), (HardwareDrift{{{1, 3}}, {}}));
  EXPECT_EQ(compose(slow, {{{0, 2}}, {}}), (HardwareDrift{{{0, 5}, {1, 3}}, {{2, {4, 1}}}}));
  EXPECT_EQ(compose({}, {{{0, 1.04}, {1, 1.06}}, {}}), (HardwareDrift{{{1, 1.06}}, {}}));
}

TEST(DriftedCluster, LostDevicesLeaveTheOthersInOrder) {
  const Cluster cluster = cluster_of(kTwoHosts);
  const Cluster left = without_devices(cluster, {0});
  EXPECT_TRUE(verify_cluster(left).ok());
  ASSERT_EQ(left.device_count(), 2);
  EXPECT_EQ(left.device_name(0), "a/1");
  EXPECT_EQ(left.device_name(1), "b/0");
  EXPECT_EQ(left.hosts[1].first_device, 1);
  EXPECT_EQ(left.route(0, 1), cluster.route(1, 2));
}

TEST(DriftedCluster, AHostThatLostItsDevicesIsNoHost) {
  const Cluster cluster = cluster_of("kind k fp32=1e12\nhost a k 1\nhost b k 1\nhost c k 2\n");
  const Cluster left = without_devices(cluster, {1});
  EXPECT_TRUE(verify_cluster(left).ok());
  ASSERT_EQ(left.hosts.size(), 2U);
  EXPECT_EQ(left.device_name(2), "c/1");
  EXPECT_EQ(left.route(0, 2), cluster.route(0, 3));
  EXPECT_EQ(left.route(1, 0), cluster.route(2, 0));
}

}  // namespace
}  // namespace agpcs
