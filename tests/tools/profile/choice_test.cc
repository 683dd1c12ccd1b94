// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/choice.h"

#include "tests/support/builders.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace agpcs {
namespace {

std::string text(const std::vector<ChosenCollective>& chosen) {
  std::string out;
  for (const ChosenCollective& collective : chosen) {
    out += std::string(name_of(collective.algorithm));
    for (const DeviceId id : collective.devices) out += " " + std::to_string(id);
    out += "\n";
  }
  return out;
}

constexpr const char* kKinds = "kind gpu fp32=15e12\nkind cpu fp32=1e11\n";

TEST(ChoosePaths, TakesEveryOrderedPairOfASmallCluster) {
  const Cluster cluster = testing::cluster_of(std::string(kKinds) + "host a gpu 2\nhost b gpu 1\n");
  const std::vector<std::pair<DeviceId, DeviceId>> all = {{0, 1}, {0, 2}, {1, 0},
                                                          {1, 2}, {2, 0}, {2, 1}};
  EXPECT_EQ(choose_paths(cluster, 3), all);
}

TEST(ChoosePaths, ShowsEveryLinkAndEveryClassOfALargeCluster) {
  std::string text = kKinds;
  for (int i = 0; i < 15; ++i) text += "host g" + std::to_string(i) + " gpu 8\n";
  text += "host slow cpu 1 nic=1e8\n";
  const Cluster cluster = testing::cluster_of(text);
  const auto paths = choose_paths(cluster, 8);
  EXPECT_LT(paths.size(), 3 * cluster.devices.size());
  std::set<LinkId> seen;
  bool inside = false, to_slow = false, from_slow = false;
  for (const auto& [from, to] : paths) {
    const std::vector<LinkId> route = cluster.route(from, to);
    seen.insert(route.begin(), route.end());
    inside |= route.size() == 2;
    to_slow |= to == 120;
    from_slow |= from == 120;
  }
  EXPECT_EQ(seen.size(), cluster.links.size());
  EXPECT_TRUE(inside && to_slow && from_slow);
}

TEST(ChooseCollectives, TakesAllEachHostAndEveryPairOfFourDevices) {
  const Cluster cluster = testing::cluster_of(std::string(kKinds) + "host a gpu 2\nhost b gpu 2\n");
  EXPECT_EQ(text(choose_collectives(cluster, 8)),
            "ring 0 1\nring 0 1 2 3\nring 0 2\nring 0 3\nring 1 2\nring 1 3\nring 2 3\n"
            "hierarchical 0 1 2 3\ntree 0 1 2 3\n");
}

TEST(ChooseCollectives, IsHierarchicalOnlyWhereAHostHasSeveralDevicesAndATreeOnlyWithThree) {
  const Cluster two_hosts =
      testing::cluster_of(std::string(kKinds) + "host a gpu 1\nhost b gpu 1\n");
  EXPECT_EQ(text(choose_collectives(two_hosts, 8)), "ring 0 1\n");
  const Cluster one_host = testing::cluster_of(std::string(kKinds) + "host a gpu 5\n");
  EXPECT_EQ(text(choose_collectives(one_host, 8)), "ring 0 1 2 3 4\ntree 0 1 2 3 4\n");
  const Cluster one_device = testing::cluster_of(std::string(kKinds) + "host a gpu 1\n");
  EXPECT_EQ(text(choose_collectives(one_device, 8)), "");
}

TEST(ChooseCollectives, TakesOneHostOfEachClassOfALargeCluster) {
  const Cluster cluster =
      testing::cluster_of(std::string(kKinds) +
                          "host a gpu 2\nhost b gpu 2\nhost c cpu 2\nhost d cpu 2\nhost e gpu 3\n");
  EXPECT_EQ(text(choose_collectives(cluster, 8)),
            "ring 0 1\nring 0 1 2 3 4 5 6 7 8 9 10\nring 4 5\nring 8 9 10\n"
            "hierarchical 0 1 2 3 4 5 6 7 8 9 10\ntree 0 1 2 3 4 5 6 7 8 9 10\n");
}

}  // namespace
}  // namespace agpcs
