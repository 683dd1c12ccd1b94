// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/topology_of_cluster.h"

#include "tests/support/builders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;

std::vector<DeviceId> all_devices(const Cluster& cluster) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

/// A line a link: its ends, its units, the cluster's link.
std::string text_of(const Cluster& cluster, const ClusterTopology& found) {
  std::string text;
  for (std::size_t i = 0; i < found.links.size(); ++i) {
    const Topology::Link& link = found.topology.links[i];
    text += fmt::format("{} > {} {} {}\n", found.topology.name_of(link.from),
                        found.topology.name_of(link.to), link.capacity,
                        cluster.links[static_cast<std::size_t>(found.links[i])].name);
  }
  return text;
}

constexpr char kTwoHosts[] =
    "kind unit fp32=1e12\n"
    "host a unit 2 bandwidth=10e9 nic=2e9\n"
    "host b unit 2 bandwidth=10e9 nic=2e9\n";

TEST(TopologyOfCluster, HasHostsAndTheSwitchBetweenThem) {
  const Cluster cluster = cluster_of(kTwoHosts);
  const ClusterTopology found = topology_of(cluster, all_devices(cluster));
  EXPECT_EQ(text_of(cluster, found),
            "a/0 > a 5 a/0 out\n"
            "a > a/0 5 a/0 in\n"
            "a/1 > a 5 a/1 out\n"
            "a > a/1 5 a/1 in\n"
            "a > switch 1 a nic out\n"
            "switch > a 1 a nic in\n"
            "b/0 > b 5 b/0 out\n"
            "b > b/0 5 b/0 in\n"
            "b/1 > b 5 b/1 out\n"
            "b > b/1 5 b/1 in\n"
            "b > switch 1 b nic out\n"
            "switch > b 1 b nic in\n");
  EXPECT_EQ(found.topology.servers, 4);
  EXPECT_EQ(found.topology.switches, 3);
  EXPECT_EQ(verify_topology(found.topology).message(), "");
}

TEST(TopologyOfCluster, KeepsTheRoutesOfTheCluster) {
  const Cluster cluster = cluster_of(kTwoHosts);
  const std::vector<DeviceId> devices = {3, 0, 1};
  const ClusterTopology found = topology_of(cluster, devices);
  for (std::size_t u = 0; u < 3; ++u) {
    for (std::size_t v = 0; v < 3; ++v) {
      std::vector<LinkId> route;
      for (const int link : found.topology.routes[u * 3 + v]) {
        route.push_back(found.links[static_cast<std::size_t>(link)]);
      }
      EXPECT_EQ(route, cluster.route(devices[u], devices[v]));
    }
  }
  EXPECT_EQ(found.topology.name_of(0), "b/1");
  EXPECT_EQ(verify_topology(found.topology).message(), "");
}

TEST(TopologyOfCluster, LeavesOutLinksThatNoRouteUses) {
  const Cluster cluster = cluster_of(kTwoHosts);
  const std::vector<DeviceId> devices = {2, 3};
  EXPECT_EQ(text_of(cluster, topology_of(cluster, devices)),
            "b/0 > b 1 b/0 out\n"
            "b > b/0 1 b/0 in\n"
            "b/1 > b 1 b/1 out\n"
            "b > b/1 1 b/1 in\n");
}

/// Hosts a, b, c of a device each in a row; messages from a to c go by host b.
Cluster row_of_hosts() {
  Cluster cluster = cluster_of(
      "kind unit fp32=1e12\n"
      "host a unit 1 bandwidth=8e9\n"
      "host b unit 1 bandwidth=8e9\n"
      "host c unit 1 bandwidth=8e9\n");
  const auto add = [&](const char* name) {
    cluster.links.push_back({name, "ethernet", 2e9, 1e-6, {}});
    return static_cast<LinkId>(cluster.links.size()) - 1;
  };
  const LinkId ab = add("a -> b"), ba = add("b -> a"), bc = add("b -> c"), cb = add("c -> b");
  cluster.host_routes = {{}, {ab}, {ab, bc}, {ba}, {}, {bc}, {cb, ba}, {cb}, {}};
  cluster.topology = "links";
  return cluster;
}

TEST(TopologyOfCluster, HostsForward) {
  const Cluster cluster = row_of_hosts();
  const ClusterTopology found = topology_of(cluster, all_devices(cluster));
  EXPECT_EQ(text_of(cluster, found),
            "a/0 > a 4 a/0 out\n"
            "a > a/0 4 a/0 in\n"
            "b/0 > b 4 b/0 out\n"
            "b > b/0 4 b/0 in\n"
            "c/0 > c 4 c/0 out\n"
            "c > c/0 4 c/0 in\n"
            "a > b 1 a -> b\n"
            "b > a 1 b -> a\n"
            "b > c 1 b -> c\n"
            "c > b 1 c -> b\n");
  EXPECT_EQ(verify_topology(found.topology).message(), "");
}

TEST(TopologyOfCluster, ANetworkCardBeforeTheCablesIsANode) {
  Cluster cluster = row_of_hosts();
  for (std::size_t from = 0; from < 3; ++from) {
    for (std::size_t to = 0; to < 3; ++to) {
      std::vector<LinkId>& route = cluster.host_routes[from * 3 + to];
      if (from == to) continue;
      route.insert(route.begin(), static_cast<LinkId>(4 * from + 2));  // "nic out"
      route.push_back(static_cast<LinkId>(4 * to + 3));                // "nic in"
    }
  }
  const ClusterTopology found = topology_of(cluster, all_devices(cluster));
  const std::string text = text_of(cluster, found);
  EXPECT_NE(text.find("a > a:nic 1 a nic out\na:nic > a 1 a nic in\n"), std::string::npos) << text;
  EXPECT_NE(text.find("a:nic > b:nic 1 a -> b\nb:nic > a:nic 1 b -> a\n"), std::string::npos)
      << text;
  EXPECT_EQ(verify_topology(found.topology).message(), "");
}

TEST(TopologyOfCluster, GivesLinksBackWithTheirFigures) {
  const Cluster cluster = row_of_hosts();
  const ClusterTopology found = topology_of(cluster, all_devices(cluster));
  const std::vector<Link> links = links_of(cluster, found);
  ASSERT_EQ(links.size(), found.topology.links.size());
  EXPECT_EQ(links[6].name, "a -> b");
  EXPECT_EQ(links[6].bandwidth, 2e9);
}

TEST(TopologyOfCluster, UnitsLoseLittleBandwidthAndAreFew) {
  const auto units = [](std::vector<double> bandwidths, int servers) {
    return units_of(bandwidths, servers);
  };
  using Units = std::vector<std::int64_t>;
  EXPECT_EQ(units({1e9, 1e9}, 16), (Units{1, 1}));
  EXPECT_EQ(units({1e9, 12e9}, 16), (Units{1, 12}));
  EXPECT_EQ(units({10e9, 25e9}, 16), (Units{2, 5}));
  EXPECT_EQ(units({10e9, 25e9}, 4), (Units{1, 2})) << "half-empty rounds would cost more";
  EXPECT_EQ(units({3e9, 4e9, 5e9}, 64), (Units{3, 4, 5}));
  EXPECT_EQ(units({1.25e9, 12e9}, 16), (Units{1, 9})) << "6% lost of the fast one";
  EXPECT_EQ(units({1.25e9, 12e9}, 1000), (Units{5, 48}));
  EXPECT_EQ(units({7e9, 8e9}, 16), (Units{1, 1}));
  EXPECT_EQ(units({7e9, 8e9}, 100), (Units{7, 8}));
  EXPECT_EQ(units({12.5e9, 100e9 / 8}, 16), (Units{1, 1})) << "the same figure in other units";
}

}  // namespace
}  // namespace agpcs
