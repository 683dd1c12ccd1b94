// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/alike_hosts.h"

#include "tests/support/builders.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;

Cluster five_hosts() {
  return testing::cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=30e12\n"
      "kind slow memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "host a fast 2 bandwidth=50e9 nic=3e9\n"
      "host b slow 2 bandwidth=50e9 nic=3e9\n"
      "host c fast 2 bandwidth=50e9 nic=3e9\n"
      "host d fast 2 bandwidth=50e9 nic=1e9\n"
      "host e fast 1 bandwidth=50e9 nic=3e9\n");
}

TEST(AlikeHosts, AreThoseWithEqualDevicesAndNics) {
  EXPECT_THAT(alike_hosts(five_hosts()), ElementsAre(0, 1, 0, 3, 4));
}

TEST(AlikeHosts, DifferWhereTheirPortsDo) {
  Cluster cluster = five_hosts();
  cluster.links[static_cast<std::size_t>(cluster.devices[4].in)].latency = 1e-3;  // c/0
  EXPECT_THAT(alike_hosts(cluster), ElementsAre(0, 1, 2, 3, 4));
}

TEST(AlikeHosts, AreNoneWhereThereIsMoreThanNicsBetweenHosts) {
  Cluster cluster = five_hosts();
  std::vector<LinkId>& route = cluster.host_routes[2];  // from a to c
  route.insert(route.begin() + 1, route.front());
  EXPECT_THAT(alike_hosts(cluster), ElementsAre(0, 1, 2, 3, 4));
}

TEST(AlikeHosts, AreNoneWhereTwoHostsShareANic) {
  Cluster cluster = five_hosts();
  const LinkId shared = cluster.host_routes[2].back();  // into c
  for (std::size_t from = 0; from < 5; ++from) {
    if (from != 3) cluster.host_routes[from * 5 + 3].back() = shared;
  }
  EXPECT_THAT(alike_hosts(cluster), ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace agpcs
