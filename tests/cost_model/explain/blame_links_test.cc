// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/blame_links.h"

#include "tests/support/builders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::lines_of;

/// Lines "from to seconds-per-byte latency", in times of what was.
std::vector<RouteDrift> routes_of(const Cluster& cluster, const std::string& text) {
  std::vector<RouteDrift> routes;
  for (const std::vector<std::string>& words : lines_of(text)) {
    const DeviceId from = cluster.find_device(words[0]), to = cluster.find_device(words[1]);
    AGPCS_CHECK(from >= 0 && to >= 0, "no route {} {}", words[0], words[1]);
    routes.push_back({from, to, std::stod(words[2]), words.size() > 3 ? std::stod(words[3]) : 1});
  }
  return routes;
}

/// A line a link that is blamed: name, times for a byte, times the latency.
std::string blamed(const Cluster& cluster, const std::string& routes) {
  std::string text;
  for (const auto& [link, factor] : blame_links(cluster, routes_of(cluster, routes))) {
    text += fmt::format("{}: {:.3g} {:.3g}\n", cluster.links[static_cast<std::size_t>(link)].name,
                        factor.seconds_per_byte, factor.latency);
  }
  return text;
}

Cluster three_hosts(const std::string& nic_of_c = "1e9") {
  return cluster_of(
      "kind k fp32=1e12\n"
      "host a k 1 nic=1e9\nhost b k 1 nic=1e9\nhost c k 1 nic=" +
      nic_of_c + "\n");
}

TEST(BlameLinks, BlamesNothingWhereNothingChanged) {
  EXPECT_EQ(blamed(three_hosts(), "a/0 b/0 1.1\nb/0 c/0 0.9\nc/0 a/0 1.2 1.8\n"), "");
  EXPECT_EQ(blamed(three_hosts(), ""), "");
}

TEST(BlameLinks, BlamesTheNicThatAllSlowRoutesHave) {
  EXPECT_EQ(blamed(three_hosts(), "a/0 b/0 1\nb/0 a/0 1\nb/0 c/0 4\nc/0 b/0 4\na/0 c/0 4\n"),
            "c nic out: 4 1\nc nic in: 4 1\n");
}

TEST(BlameLinks, ARingMeasuredInOneDirectionIsEnough) {
  EXPECT_EQ(blamed(three_hosts(), "a/0 b/0 1\nb/0 c/0 4\nc/0 a/0 4\n"),
            "c nic out: 4 1\nc nic in: 4 1\n");
}

TEST(BlameLinks, BlamesOneDirectionWhereTheOtherIsAsFastAsEver) {
  EXPECT_EQ(blamed(three_hosts(), "a/0 c/0 3\nb/0 c/0 3\nc/0 a/0 1\nc/0 b/0 1\na/0 b/0 1\n"),
            "c nic in: 3 1\n");
}

TEST(BlameLinks, TwoThinNicsAreTwoChanges) {
  // Routes to c are bound by c, the slower one. Between a and b nothing tells which: the first.
  EXPECT_EQ(
      blamed(three_hosts(), "a/0 b/0 2\nb/0 a/0 2\nb/0 c/0 5\nc/0 b/0 5\na/0 c/0 5\nc/0 a/0 5\n"),
      "a nic out: 2 1\na nic in: 2 1\nc nic out: 5 1\nc nic in: 5 1\n");
}

TEST(BlameLinks, NoiseNeitherHidesNorSpreadsTheBlame) {
  EXPECT_EQ(blamed(three_hosts(),
                   "a/0 b/0 1.15\nb/0 a/0 0.85\nb/0 c/0 3.7\nc/0 b/0 4.2\n"
                   "a/0 c/0 4.4\nc/0 a/0 3.8\n"),
            "c nic out: 4 1\nc nic in: 4 1\n");
}

TEST(BlameLinks, AWideNicBesideAThinOneIsExcusedUntilItIsTheThinnerOne) {
  const Cluster cluster = three_hosts("0.1e9");
  EXPECT_EQ(blamed(cluster, "a/0 b/0 1\nb/0 c/0 2\nc/0 a/0 2\n"),
            "c nic out: 2 1\nc nic in: 2 1\n");
  // At an eighth of its rate it still is not the slowest, but it is slow where c is not on the way.
  EXPECT_EQ(blamed(cluster, "a/0 b/0 8\nb/0 c/0 2\nc/0 a/0 2\nb/0 a/0 8\n"),
            "a nic out: 8 1\na nic in: 8 1\nc nic out: 2 1\nc nic in: 2 1\n");
}

TEST(BlameLinks, ALinkThatIsBackMakesItsRoutesFastAgain) {
  Cluster cluster = three_hosts("0.25e9");
  EXPECT_EQ(blamed(cluster, "a/0 b/0 1\nb/0 c/0 0.25\nc/0 a/0 0.25\n"),
            "c nic out: 0.25 1\nc nic in: 0.25 1\n");
  // Both were thin: neither alone explains the route between them.
  cluster = cluster_of("kind k fp32=1e12\nhost a k 1 nic=0.25e9\nhost b k 1 nic=0.25e9\n");
  EXPECT_EQ(blamed(cluster, "a/0 b/0 0.25\nb/0 a/0 0.25\n"),
            "a nic out: 0.25 1\na nic in: 0.25 1\nb nic out: 0.25 1\nb nic in: 0.25 1\n");
}

TEST(BlameLinks, AllPortsOfAHostAreItsInterconnect) {
  const Cluster cluster = cluster_of("kind k fp32=1e12\nhost a k 3\nhost b k 1\n");
  EXPECT_EQ(blamed(cluster, "a/0 a/1 2\na/1 a/2 2\na/2 a/0 2\na/2 b/0 1\nb/0 a/0 1\n"),
            "a/0 out: 2 1\na/0 in: 2 1\na/1 out: 2 1\na/1 in: 2 1\na/2 out: 2 1\na/2 in: 2 1\n");
  // One device's ports alone.
  EXPECT_EQ(blamed(cluster, "a/0 a/1 2\na/1 a/2 2\na/2 a/0 1\na/2 b/0 1\nb/0 a/0 1\n"),
            "a/1 out: 2 1\na/1 in: 2 1\n");
}

TEST(BlameLinks, LatenciesAddUpAlongARoute) {
  // 36 us: 3 at each port, 15 at each NIC. With 51 more, one NIC has 66.
  EXPECT_EQ(
      blamed(three_hosts(), "a/0 b/0 1 1\nb/0 c/0 1 2.417\nc/0 b/0 1 2.417\na/0 c/0 1 2.417\n"),
      "c nic out: 1 4.4\nc nic in: 1 4.4\n");
}

TEST(BlameLinks, RatesAndLatenciesAreBlamedOnTheirOwn) {
  EXPECT_EQ(blamed(three_hosts(),
                   "a/0 b/0 1 3\nb/0 a/0 1 3\nb/0 c/0 4 1\nc/0 b/0 4 1\na/0 c/0 4 3\n"
                   "c/0 a/0 4 3\n"),
            "a nic out: 1 5.8\na nic in: 1 5.8\nc nic out: 4 1\nc nic in: 4 1\n");
}

}  // namespace
}  // namespace agpcs
