// SPDX-License-Identifier: Apache-2.0
#include "ir/cluster/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

Topology made(const std::string& spec) {
  Result<Topology> topology = make_topology(spec);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  return topology.ok() ? *topology : Topology();
}

bool joined(const Topology& topology, int a, int b) {
  return std::any_of(topology.links.begin(), topology.links.end(),
                     [&](const auto& link) { return link.from == a && link.to == b; });
}

std::vector<int> degrees(const Topology& topology) {
  std::vector<int> degrees(static_cast<std::size_t>(topology.nodes()), 0);
  for (const auto& link : topology.links) ++degrees[static_cast<std::size_t>(link.from)];
  return degrees;
}

// Nodes and cables as the paper's table 2 has them.
TEST(Topology, HasAsManyNodesAndCablesAsThePaperSays) {
  struct Row {
    const char* spec;
    int nodes, cables;
  };
  for (const Row& row : {Row{"bcube:3,1", 15, 18},
                         {"bcube:4,1", 24, 32},
                         {"bcube:5,1", 35, 50},
                         {"dcell:4,1", 25, 30},
                         {"dcell:5,1", 36, 45},
                         {"dcell:6,1", 49, 63},
                         {"jellyfish:10,4", 20, 30},
                         {"jellyfish:15,4", 30, 45},
                         {"jellyfish:20,4,links=39", 40, 59}}) {
    const Topology topology = made(row.spec);
    EXPECT_EQ(topology.nodes(), row.nodes) << row.spec;
    EXPECT_EQ(topology.links.size(), 2 * static_cast<std::size_t>(row.cables)) << row.spec;
  }
}

TEST(Topology, JoinsBCubeServersThatDifferInOneDigit) {
  const Topology topology = made("bcube:3,1");
  for (int level0 = 0; level0 < 3; ++level0) {
    for (int level1 = 0; level1 < 3; ++level1) {
      const int server = 3 * level1 + level0;
      EXPECT_TRUE(joined(topology, server, 9 + level1));      // level 0: same upper digit
      EXPECT_TRUE(joined(topology, server, 9 + 3 + level0));  // level 1: same lower digit
    }
  }
}

TEST(Topology, JoinsDCellServerToServerAcrossCells) {
  const Topology topology = made("dcell:4,1");
  for (int i = 0; i < 5; ++i) {
    for (int j = i + 1; j < 5; ++j) EXPECT_TRUE(joined(topology, 4 * i + j - 1, 4 * j + i));
  }
  EXPECT_EQ(made("dcell:2,2").servers, 42);  // 2, 6, 42
}

TEST(Topology, DrawsJellyfishBySeedWithEverySwitchAtItsDegree) {
  const Topology topology = made("jellyfish:20,4,seed=3");
  const std::vector<int> degree = degrees(topology);
  for (int w = 20; w < 40; ++w) EXPECT_EQ(degree[static_cast<std::size_t>(w)], 5);
  const auto links = [](const Topology& t) {
    std::multiset<std::pair<int, int>> ends;
    for (const auto& link : t.links) ends.emplace(link.from, link.to);
    return ends;
  };
  EXPECT_EQ(links(topology), links(made("jellyfish:20,4,seed=3")));
  EXPECT_NE(links(topology), links(made("jellyfish:20,4,seed=4")));
  const auto ends = links(topology);
  EXPECT_EQ(std::set(ends.begin(), ends.end()).size(), ends.size()) << "no cable is doubled";
}

TEST(Topology, MakesFatTreesToriSwitchesAndHostsOfDevices) {
  const Topology tree = made("fat_tree:4");
  EXPECT_EQ(tree.servers, 16);
  EXPECT_EQ(tree.switches, 20);
  EXPECT_EQ(tree.links.size(), 2u * 48);
  EXPECT_EQ(made("torus:3,4").links.size(), 2u * 24);
  EXPECT_EQ(made("torus:2,2").links.size(), 2u * 4) << "a dimension of 2 has one cable";
  EXPECT_EQ(made("switch:5").links.size(), 2u * 5);
  const Topology dgx = made("dgx:3,4");
  EXPECT_EQ(dgx.servers, 12);
  EXPECT_EQ(dgx.links[0].capacity, 12);
  EXPECT_EQ(dgx.links[2].capacity, 1);
}

TEST(Topology, LosesCablesButStaysConnected) {
  const Topology whole = made("jellyfish:40,4");
  const Topology less = made("jellyfish:40,4,fail=0.1");
  EXPECT_EQ(less.links.size(), whole.links.size() - 2 * 12);
  EXPECT_TRUE(verify_topology(less).ok());
  EXPECT_THAT(make_topology("switch:4,fail=0.5").status().message(),
              HasSubstr("only 0 of 2 cables can be spared"));
}

TEST(Topology, ReversedLeadsBack) {
  Topology topology = made("switch:3");
  topology.routes.assign(9, {});
  for (int u = 0; u < 3; ++u) {
    for (int v = 0; v < 3; ++v) {
      if (u != v) topology.routes[static_cast<std::size_t>(3 * u + v)] = {2 * u, 2 * v + 1};
    }
  }
  ASSERT_TRUE(verify_topology(topology).ok()) << verify_topology(topology).message();
  EXPECT_TRUE(verify_topology(reversed(topology)).ok());
  EXPECT_EQ(reversed(topology).links[0].from, 3);
}

TEST(Topology, RefusesWhatItCannotMakeAndSaysWhy) {
  struct Row {
    const char *spec, *says;
  };
  for (const Row& row : {
           Row{"bcub:3,1", "did you mean 'bcube'?"},
           {"bcube:3", "1 parameters given, bcube takes n,k"},
           {"bcube:0,1", "must be a positive integer, is '0'"},
           {"bcube:1,1", "at least 2 servers"},
           {"bcube:1000000,9", "more than 65536 servers"},
           {"dcell:9,9", "more than 65536 servers"},
           {"jellyfish:5,9", "degree 9 of 5 switches"},
           {"jellyfish:5,3", "15 ends of cables are odd"},
           {"jellyfish:20,4,links=41", "links=41"},
           {"torus:", "0 parameters given"},
           {"torus:3,x", "is 'x'"},
           {"torus:1", "1 server"},
           {"fat_tree:3", "k must be even"},
           {"switch:4,fail=1", "fail must be a part of the cables in [0, 1), is '1'"},
           {"switch:4,fail=-1", "is '-1'"},
           {"switch:4,sed=1", "did you mean 'seed'?"},
           {"switch:4,links=3", "'switch' has no option links"},
       }) {
    const Result<Topology> topology = make_topology(row.spec);
    ASSERT_FALSE(topology.ok()) << row.spec;
    EXPECT_THAT(topology.status().message(), HasSubstr(row.says));
    EXPECT_EQ(topology.status().code(), StatusCode::kInvalidInput);
  }
}

TEST(Topology, IsRefusedWithoutCapacityPortOrConnection) {
  Topology none = made("switch:3");
  none.links[0].capacity = 0;
  EXPECT_THAT(verify_topology(none).message(), HasSubstr("link s0 -> w0 carries 0 units"));
  Topology no_port = made("switch:3");
  no_port.links.erase(no_port.links.begin());
  EXPECT_THAT(verify_topology(no_port).message(), HasSubstr("server s0 has no port"));
  Topology apart = made("torus:4");
  apart.links = {{0, 1, 1}, {1, 0, 1}, {2, 3, 1}, {3, 2, 1}};
  EXPECT_THAT(verify_topology(apart).message(), HasSubstr("no way from server s0 to s2"));
}

}  // namespace
}  // namespace agpcs
