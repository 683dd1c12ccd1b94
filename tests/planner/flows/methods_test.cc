// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/bound.h"
#include "planner/flows/method.h"
#include "tests/planner/flows/random_topologies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kTopologies[] = {
    "bcube:3,1",
    "bcube:2,2",
    "dcell:3,1",
    "dcell:2,2",
    "jellyfish:9,4",
    "fat_tree:4",
    "torus:3,4",
    "torus:2,2,2",
    "switch:6",
    "dgx:3,4",
    "bcube:4,1,fail=0.1",
    "dcell:4,1,fail=0.1,seed=2",
    "jellyfish:12,3,fail=0.1",
    "fat_tree:4,fail=0.1",
    "torus:4,4,fail=0.2",
    "dgx:4,2,fail=0.1",
};

/// Valid under both checkers, and not below the bound.
void expect_good(const Topology& topology, const FlowMethod& method, const FlowOptions& options) {
  const std::string where = std::string(method.name) + " on " + topology.name;
  const Result<FlowSchedule> schedule = method.schedule(topology, options);
  if (!schedule.ok()) {
    EXPECT_EQ(schedule.status().code(), StatusCode::kInfeasible) << where;
    EXPECT_FALSE(schedule.status().message().empty()) << where;
    return;
  }
  EXPECT_EQ(verify_schedule(topology, *schedule).message(), "") << where;
  EXPECT_EQ(check_sums(*schedule, options.seed).message(), "") << where;
  EXPECT_LE(schedule->sub_chunks, options.max_sub_chunks) << where;
  const FlowBound bound = flow_bound(topology);
  const int k = schedule->sub_chunks;
  EXPECT_GE(schedule->rounds(), options.barrier ? bound.rounds(k) : bound.overlapped_rounds(k))
      << where;
  if (options.barrier && !schedule->all_gather.empty()) {
    EXPECT_LT(schedule->reduce_scatter.back().round, schedule->all_gather.front().round) << where;
  }
}

TEST(FlowMethods, MakeValidSchedulesOnEveryFamily) {
  for (const std::string_view spec : kTopologies) {
    const Topology topology = *make_topology(spec);
    for (const FlowMethod& method : flow_methods()) {
      FlowOptions options;
      options.seed = 3;
      expect_good(topology, method, options);
      if (topology.servers > 12) continue;
      options.barrier = false;
      options.max_sub_chunks = 3;
      expect_good(topology, method, options);
    }
  }
}

TEST(FlowMethods, MakeValidSchedulesOnRandomTopologies) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomTopologyOptions random;
    random.symmetric = seed % 2 == 0;
    const Topology topology = random_topology(seed, random);
    FlowOptions options;
    options.seed = seed;
    options.barrier = seed % 3 != 0;
    for (const FlowMethod& method : flow_methods()) expect_good(topology, method, options);
  }
}

/// Servers on one bus of switches, with routes given.
Topology with_routes() {
  Topology topology = *make_topology("dgx:2,3");
  const auto n = static_cast<std::size_t>(topology.servers);
  topology.routes.resize(n * n);
  for (int from = 0; from < topology.servers; ++from) {
    for (int to = 0; to < topology.servers; ++to) {
      if (from == to) continue;
      const int fast = from / 3 == to / 3 ? 0 : 2;  // each server's links: in the host, outside
      topology.routes[static_cast<std::size_t>(from) * n + static_cast<std::size_t>(to)] = {
          4 * from + fast, 4 * to + fast + 1};
    }
  }
  return topology;
}

TEST(FlowMethods, KeepToGivenRoutes) {
  ASSERT_EQ(verify_topology(with_routes()).message(), "");
  for (const FlowMethod& method : flow_methods()) expect_good(with_routes(), method, {});
}

TEST(FlowMethods, AreTheSameForTheSameSeed) {
  const Topology topology = *make_topology("jellyfish:12,4,seed=5");
  for (const FlowMethod& method : flow_methods()) {
    FlowOptions options;
    options.seed = 11;
    const FlowSchedule one = *method.schedule(topology, options);
    const FlowSchedule two = *method.schedule(topology, options);
    ASSERT_EQ(one.all_gather.size(), two.all_gather.size()) << method.name;
    for (std::size_t i = 0; i < one.all_gather.size(); ++i) {
      EXPECT_EQ(one.all_gather[i].chunk, two.all_gather[i].chunk) << method.name;
      EXPECT_EQ(one.all_gather[i].route, two.all_gather[i].route) << method.name;
      EXPECT_EQ(one.all_gather[i].round, two.all_gather[i].round) << method.name;
    }
  }
}

double rounds_of(std::string_view method, std::string_view spec) {
  return (*find_flow_method(method))->schedule(*make_topology(spec), {})->rounds();
}

TEST(FlowMethods, RingsTakeTwoRoundsForEveryOtherServer) {
  EXPECT_EQ(rounds_of("ring", "switch:7"), 12);
  EXPECT_EQ(rounds_of("ring", "torus:7"), 12);
  EXPECT_EQ(rounds_of("hamiltonian", "bcube:3,1"), 16);
  EXPECT_EQ(rounds_of("hamiltonian", "fat_tree:4"), 30);
  EXPECT_EQ(rounds_of("hamiltonian", "dcell:4,1"), 38);
}

TEST(FlowMethods, HamiltonianSaysWhenThereIsNoRing) {
  const Topology star = *make_topology("switch:3");
  Topology path = *make_topology("torus:3");  // s0 - s1 - s2
  path.links.resize(4);
  EXPECT_TRUE((*find_flow_method("hamiltonian"))->schedule(star, {}).ok());
  const auto none = (*find_flow_method("hamiltonian"))->schedule(path, {});
  EXPECT_EQ(none.status().code(), StatusCode::kInfeasible);
  EXPECT_THAT(none.status().message(), HasSubstr("no ring of hops that share no link"));
}

TEST(FlowMethods, OfATreeAreBoundByIt) {
  // A path of three servers: the tree is given, and every method that may use all of it is exact.
  EXPECT_EQ(rounds_of("trees", "switch:2"), 2);
  EXPECT_EQ(rounds_of("greedy", "switch:2"), 2);
  EXPECT_EQ(rounds_of("parameter_server", "switch:2"), 2);
}

TEST(FlowMethods, MoreEffortIsNoWorse) {
  const Topology topology = *make_topology("bcube:4,1");
  FlowOptions options;
  const FlowMethod& greedy = **find_flow_method("greedy");
  const double once = greedy.schedule(topology, options)->rounds();
  options.effort = 20;
  EXPECT_LE(greedy.schedule(topology, options)->rounds(), once);
}

TEST(FlowMethods, AreFoundByName) {
  EXPECT_EQ((*find_flow_method("trees"))->name, "trees");
  EXPECT_THAT(find_flow_method("tree").status().message(), HasSubstr("did you mean 'trees'?"));
}

TEST(FlowMethods, RefuseTopologiesThatAreNone) {
  Topology cut = *make_topology("torus:4");
  cut.links.resize(4);
  for (const FlowMethod& method : flow_methods()) {
    EXPECT_EQ(method.schedule(cut, {}).status().code(), StatusCode::kInvalidInput) << method.name;
  }
}

}  // namespace
}  // namespace agpcs
