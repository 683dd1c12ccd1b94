// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(const std::string& text) {
  const Result<ClusterFile> file = parse_cluster(text, "c.yaml");
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidInput);
  return file.status().message();
}

// ---- Links ----

constexpr char kLinks[] = R"(device_kinds:
  gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}
hosts:
  - {name: a, devices: {kind: gpu}}
  - {name: b, devices: {kind: gpu}, nic: {kind: ib, bandwidth: 100Gbit/s, latency: 2us}}
  - {name: c, devices: {kind: gpu}}
network:
  topology: links
  switches: [s]
  links:
)";

std::string routes_of(const std::string& links) {
  const Result<ClusterFile> file = parse_cluster(kLinks + links, "c.yaml");
  if (!file.ok()) return file.status().message();
  const std::string text = print_cluster(file->cluster);
  return text.substr(text.find("route "));
}

TEST(ClusterLinks, RoutesTakeTheFewestLinks) {
  EXPECT_EQ(routes_of("    - {from: a, to: b, bandwidth: 10GB/s, latency: 1us}\n"
                      "    - {from: b, to: s, bandwidth: 10GB/s}\n"
                      "    - {from: s, to: c, bandwidth: 10GB/s}\n"),
            "route a b: a -> b, b nic in\n"
            "route a c: a -> b, b -> s, s -> c\n"
            "route b a: b nic out, b -> a\n"
            "route b c: b nic out, b -> s, s -> c\n"
            "route c a: c -> s, s -> b, b -> a\n"
            "route c b: c -> s, s -> b, b nic in\n");
}

TEST(ClusterLinks, AmongEqualPathsTheLowerNodeWins) {
  EXPECT_THAT(routes_of("    - {from: a, to: s, bandwidth: 10GB/s}\n"
                        "    - {from: s, to: c, bandwidth: 10GB/s}\n"
                        "    - {from: c, to: b, bandwidth: 10GB/s}\n"
                        "    - {from: b, to: a, bandwidth: 10GB/s}\n"),
              HasSubstr("route a c: a -> b, b -> c\n"));
}

TEST(ClusterLinks, AOneWayLinkLeadsOneWay) {
  EXPECT_EQ(routes_of("    - {from: a, to: b, bandwidth: 10GB/s, one_way: true}\n"
                      "    - {from: b, to: c, bandwidth: 10GB/s, one_way: true}\n"
                      "    - {from: c, to: a, bandwidth: 10GB/s, one_way: true}\n"),
            "route a b: a -> b, b nic in\n"
            "route a c: a -> b, b -> c\n"
            "route b a: b nic out, b -> c, c -> a\n"
            "route b c: b nic out, b -> c\n"
            "route c a: c -> a\n"
            "route c b: c -> a, a -> b, b nic in\n");
}

TEST(ClusterLinks, AHostThatCannotBeReachedIsAnError) {
  EXPECT_EQ(routes_of("    - {from: a, to: b, bandwidth: 10GB/s}\n"
                      "    - {from: c, to: a, bandwidth: 10GB/s, one_way: true}\n"),
            "c.yaml:8:3: error: no path of links from host 'a' to host 'c'\n"
            "    topology: links\n"
            "    ^\n"
            "c.yaml:8:3: error: no path of links from host 'b' to host 'c'\n"
            "    topology: links\n"
            "    ^");
}

TEST(ClusterLinks, WrongLinksAreRefused) {
  EXPECT_THAT(routes_of("    - {from: a, to: d, bandwidth: 10GB/s}\n"),
              HasSubstr("unknown host or switch 'd'"));
  EXPECT_THAT(routes_of("    - {from: a, to: a, bandwidth: 10GB/s}\n"),
              HasSubstr("link 1 joins 'a' to itself"));
  EXPECT_THAT(routes_of("    - {from: a, to: b}\n"), HasSubstr("link 1 lacks 'bandwidth'"));
  EXPECT_THAT(routes_of("    - {from: a, to: b, bandwidth: 1GB/s}\n"
                        "    - {from: b, to: a, bandwidth: 1GB/s}\n"),
              HasSubstr("link 'b -> a' is there twice"));
}

TEST(ClusterLinks, AHostWithoutAnyLinkIsAnError) {
  EXPECT_EQ(routes_of("    - {from: a, to: b, bandwidth: 10GB/s}\n"),
            "c.yaml:8:3: error: host 'c' has no link\n"
            "    topology: links\n"
            "    ^\n"
            "  hint: add - {from: c, to: ..., bandwidth: ...}");
}

// ---- Generated networks ----

std::string with_network(int hosts, const std::string& network) {
  std::string text =
      "device_kinds:\n  gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 1TFLOPS}}\n"
      "hosts:\n";
  for (int h = 0; h < hosts; ++h) {
    text += "  - {name: h" + std::to_string(h) + ", devices: {kind: gpu}}\n";
  }
  return text + "network: {" + network + "}\n";
}

/// Links and routes; or what is wrong, from the message on.
std::string network_of(int hosts, const std::string& network) {
  const Result<ClusterFile> file = parse_cluster(with_network(hosts, network), "c.yaml");
  if (!file.ok()) {
    const std::string text = file.status().message();
    return text.substr(std::min(text.find("error:"), text.size()));
  }
  const std::string text = print_cluster(file->cluster);
  return text.substr(text.find("link 'h0 -> "));
}

TEST(GeneratedNetworks, JoinHostsInFileOrder) {
  EXPECT_EQ(network_of(3, "topology: torus, a: 3, bandwidth: 1GB/s, latency: 5us"),
            "link 'h0 -> h1' kind=ethernet bandwidth=1000000000 latency=5e-06\n"
            "link 'h1 -> h0' kind=ethernet bandwidth=1000000000 latency=5e-06\n"
            "link 'h1 -> h2' kind=ethernet bandwidth=1000000000 latency=5e-06\n"
            "link 'h2 -> h1' kind=ethernet bandwidth=1000000000 latency=5e-06\n"
            "link 'h2 -> h0' kind=ethernet bandwidth=1000000000 latency=5e-06\n"
            "link 'h0 -> h2' kind=ethernet bandwidth=1000000000 latency=5e-06\n"
            "route h0 h1: h0 -> h1\n"
            "route h0 h2: h0 -> h2\n"
            "route h1 h0: h1 -> h0\n"
            "route h1 h2: h1 -> h2\n"
            "route h2 h0: h2 -> h0\n"
            "route h2 h1: h2 -> h1\n");
}

TEST(GeneratedNetworks, AreRoutedByTheFewestLinksOverSwitchesAndHosts) {
  const std::string text = network_of(4, "topology: bcube, n: 2, k: 1, bandwidth: 10Gbit/s");
  EXPECT_THAT(text, HasSubstr("route h0 h1: h0 -> w0, w0 -> h1\n"));
  EXPECT_THAT(text, HasSubstr("route h0 h3: h0 -> w0, w0 -> h1, h1 -> w3, w3 -> h3\n"));
}

TEST(GeneratedNetworks, OfEveryFamilyAreRead) {
  struct Row {
    int hosts;
    const char* network;
  };
  for (const Row& row : {Row{4, "topology: bcube, n: 2, k: 1"},
                         {6, "topology: dcell, n: 2, l: 1"},
                         {10, "topology: jellyfish, degree: 4, seed: 3"},
                         {20, "topology: jellyfish, servers: 20, degree: 4, links: 39, seed: 1"},
                         {16, "topology: fat_tree, k: 4, fail: 0.02, seed: 5"},
                         {12, "topology: torus, a: 3, b: 4"},
                         {8, "topology: torus, a: 2, b: 2, c: 2"}}) {
    const std::string text =
        network_of(row.hosts, std::string(row.network) + ", bandwidth: 1GB/s, kind: ib");
    EXPECT_THAT(text, StartsWith("link 'h0 -> ")) << row.network;
  }
}

TEST(GeneratedNetworks, AreRefusedWithTheReason) {
  struct Row {
    const char *network, *says;
  };
  for (const Row& row : {
           Row{"topology: bcube, n: 4, k: 1",
               "error: bcube of n 4, k 1 has 16 servers, but the cluster has 4 hosts\n"},
           {"topology: bcube, n: 4", "error: network 'bcube' lacks 'k'\n"},
           {"topology: bcube, n: 0, k: 1",
            "error: 'n' of network 'bcube' must be a whole number from 1 to 65536, is '0'\n"},
           {"topology: bcube, n: 1, k: 1",
            "error: no bcube of n 1, k 1: a switch must have at least 2 servers\n"},
           {"topology: bcube, n: 60000, k: 9",
            "error: no bcube of n 60000, k 9: more than 65536 servers\n"},
           {"topology: bcube, n: 2, k: 1, degree: 4", "error: unknown key 'degree'"},
           {"topology: bcube, n: 2, k: 1, links: []", "error: unknown key 'links'"},
           {"topology: jellyfish, degree: 9", "error: no jellyfish of degree 9: degree 9 of 4"},
           {"topology: jellyfish, degree: 3, seed: -1", "error: 'seed' of network 'jellyfish'"},
           {"topology: torus, a: 2, c: 2", "error: network 'torus' lacks 'b'\n"},
           {"topology: torus, a: 4, fail: 1",
            "fail must be a part of the cables in [0, 1), is '1'"},
           {"topology: torus, a: 4, fail: 0.9", "only 1 of 4 cables can be spared"},
           {"topology: dgx, hosts: 2, devices: 2",
            "error: topology 'dgx' is of devices in hosts\n"},
           {"topology: bcub", "did you mean 'bcube'? topologies: switch, links, bcube, dcell"},
       }) {
    EXPECT_THAT(network_of(4, std::string(row.network) + ", bandwidth: 1GB/s"),
                HasSubstr(row.says));
  }
  EXPECT_THAT(
      network_of(4, "topology: torus, a: 4, bandwidth: 0GB/s"),
      HasSubstr("error: 'bandwidth' of network 'torus' must be more than zero, is '0GB/s'"));
  EXPECT_THAT(network_of(4, "topology: torus, a: 4"),
              HasSubstr("error: network 'torus' lacks 'bandwidth'"));
}

TEST(GeneratedNetworks, NameTheirSwitchesUnlikeHosts) {
  std::string text = with_network(2, "topology: dcell, n: 2, l: 0, bandwidth: 1GB/s");
  EXPECT_THAT(error_of(text), HasSubstr("'l' of network 'dcell' must be a whole number from 1"));
  text = with_network(6, "topology: dcell, n: 2, l: 1, bandwidth: 1GB/s");
  text.replace(text.find("h3"), 2, "w1");
  EXPECT_THAT(error_of(text), HasSubstr("host 'w1' has the name of a switch of the network"));
}

// ---- Size ----

TEST(ClusterFile, OfTheMostDevicesIsRead) {
  const Result<ClusterFile> file = parse_cluster(
      "device_kinds:\n"
      "  gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}\n"
      "hosts: [{name: h, count: 1024, devices: {kind: gpu, count: 256}, nic: {bandwidth: "
      "1GB/s}}]\n",
      "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Cluster& cluster = file->cluster;
  EXPECT_EQ(cluster.device_count(), 262144);
  EXPECT_EQ(cluster.links.size(), 2U * (262144 + 1024));
  EXPECT_EQ(cluster.route(0, 262143).size(), 4U);
}

// tests/bench/planning/huge_clusters.py reads 300 hosts with 44,850 cables.
TEST(ClusterLinks, AFullMeshOfAHundredHostsIsRead) {
  constexpr int kHosts = 100;
  std::string text =
      "device_kinds:\n"
      "  gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}\n"
      "hosts: [{name: h, count: 100, devices: {kind: gpu}}]\n"
      "network:\n  topology: links\n  links:\n";
  for (int a = 0; a < kHosts; ++a) {
    for (int b = a + 1; b < kHosts; ++b) {
      text += "    - {from: h" + std::to_string(a) + ", to: h" + std::to_string(b) +
              ", bandwidth: 10GB/s}\n";
    }
  }
  const Result<ClusterFile> file = parse_cluster(text, "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Cluster& cluster = file->cluster;
  ASSERT_EQ(cluster.device_count(), kHosts);
  EXPECT_EQ(
      std::count_if(cluster.links.begin(), cluster.links.end(),
                    [](const Link& link) { return link.name.find(" -> ") != link.name.npos; }),
      kHosts * (kHosts - 1));
  for (int a = 0; a < kHosts; ++a) {
    for (int b = 0; b < kHosts; ++b) {
      EXPECT_EQ(cluster.host_routes[static_cast<std::size_t>(a * kHosts + b)].size(),
                a == b ? 0U : 1U);
    }
  }
}

}  // namespace
}  // namespace agpcs
