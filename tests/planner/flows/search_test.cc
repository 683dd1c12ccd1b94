// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "planner/flows/bound.h"
#include "planner/flows/hops.h"
#include "planner/flows/methods.h"
#include "planner/flows/packing.h"
#include "planner/flows/rings/rings.h"
#include "tests/planner/flows/random_topologies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

FlowSchedule searched(const Topology& topology, const FlowOptions& options) {
  Result<FlowSchedule> schedule = schedule_search(topology, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message();
  EXPECT_EQ(verify_schedule(topology, *schedule).message(), "") << topology.name;
  EXPECT_EQ(check_sums(*schedule, 1).message(), "") << topology.name;
  return *schedule;
}

/// Each ring visits every server once, hops follow one another, and all rings together fit.
void expect_rings(const Topology& topology, const std::vector<FlowRing>& rings) {
  std::vector<std::int64_t> load(topology.links.size(), 0);
  for (const FlowRing& ring : rings) {
    std::vector<int> visited = ring.order, all(static_cast<std::size_t>(topology.servers));
    std::sort(visited.begin(), visited.end());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(visited, all) << topology.name;
    for (std::size_t i = 0; i < ring.hops.size(); ++i) {
      EXPECT_EQ(ring.hops[i].from, ring.order[i]);
      EXPECT_EQ(ring.hops[i].to, ring.order[(i + 1) % ring.order.size()]);
      for (const int l : ring.hops[i].links) ++load[static_cast<std::size_t>(l)];
    }
  }
  for (std::size_t l = 0; l < load.size(); ++l) {
    EXPECT_LE(load[l], topology.links[l].capacity) << topology.name << " link " << l;
  }
}

TEST(FlowRings, VisitEveryServerOnceAndShareNoLink) {
  struct Row {
    const char* spec;
    int count;
  };
  for (const Row& row : {Row{"bcube:3,1", 2},
                         {"bcube:4,1", 2},
                         {"dcell:4,1", 2},
                         {"dcell:6,1", 2},
                         {"dcell:5,1", 1},
                         {"torus:5,5", 2},
                         {"jellyfish:20,4,links=39", 1},
                         {"jellyfish:60,4,fail=0.05", 1},
                         {"fat_tree:4", 1},
                         {"dgx:4,4", 1},
                         {"switch:7", 1},
                         {"bcube:32,1", 2},
                         {"dcell:32,1", 2}}) {
    const Topology topology = *make_topology(row.spec);
    const std::vector<FlowRing> rings = find_rings(topology, row.count, Rng(1), 20);
    ASSERT_EQ(rings.size(), static_cast<std::size_t>(row.count)) << row.spec;
    expect_rings(topology, rings);
    EXPECT_EQ(all_gather_along(rings).all_gather_rounds(), topology.servers - 1);
  }
}

TEST(FlowRings, AreNotFoundWhereThereAreNone) {
  EXPECT_TRUE(find_rings(*make_topology("bcube:3,1"), 3, Rng(1), 2).empty()) << "two ports";
  // A server behind another one: a ring would pass that twice.
  Topology behind = *make_topology("torus:3");
  behind.servers = 4;
  behind.node_names = {"a", "b", "c", "d"};
  behind.links.push_back({0, 3, 1});
  behind.links.push_back({3, 0, 1});
  ASSERT_TRUE(verify_topology(behind).ok());
  EXPECT_TRUE(find_rings(behind, 1, Rng(1), 2).empty());
  EXPECT_EQ(searched(behind, {}).servers, 4);
}

TEST(FlowPacking, KeepsCountOfWhatIsMissing) {
  const Topology topology = *make_topology("dcell:4,1");
  const std::vector<FlowRoute> hops = shortest_hops(topology, 8, 1);
  FlowPacking packing(topology, hops, 1, 10);
  EXPECT_EQ(packing.missing(), 20 * 19);
  Rng rng(1);
  packing.fill(rng);
  const auto packed = [&] {
    return static_cast<std::int64_t>(packing.all_gather().all_gather.size());
  };
  EXPECT_EQ(packing.missing(), 20 * 19 - packed());
  const std::int64_t filled = packing.missing();
  for (int i = 0; i < 2000 && packing.missing() > 0; ++i) packing.shuffle(rng);
  EXPECT_EQ(packing.missing(), 20 * 19 - packed());
  EXPECT_LT(packing.missing(), filled);
}

// Goal of the project: the paper's nine topologies at the proven bound with at most two sub-chunks.
TEST(FlowSearch, MeetsTheProvenBoundOnThePapersTopologies) {
  struct Row {
    const char* spec;
    double rounds;
  };
  for (const Row& row : {Row{"bcube:3,1", 8},
                         {"bcube:4,1", 15},
                         {"bcube:5,1", 24},
                         {"dcell:4,1", 19},
                         {"dcell:5,1", 29},
                         {"dcell:6,1", 41},
                         {"jellyfish:10,4", 18},
                         {"jellyfish:15,4", 28},
                         {"jellyfish:20,4,links=39", 38}}) {
    const Topology topology = *make_topology(row.spec);
    EXPECT_EQ(flow_bound(topology).rounds(2), row.rounds) << row.spec;
    EXPECT_EQ(searched(topology, {}).rounds(), row.rounds) << row.spec;
  }
}

// One round more than the cut of a host: what arrives last has yet to be spread inside.
TEST(FlowSearch, SpreadsInsideHostsWhileRingsGoOn) {
  EXPECT_EQ(searched(*make_topology("dgx:4,4"), {}).rounds(), 7);
  EXPECT_EQ(searched(*make_topology("dgx:20,4"), {}).rounds(), 39);
}

TEST(FlowSearch, HangsServersThatFailuresCutOffOnTheRing) {
  const Topology topology = *make_topology("dcell:6,1,fail=0.1");
  EXPECT_EQ(searched(topology, {}).rounds(), flow_bound(topology).rounds(2));
}

TEST(FlowSearch, GivesTheSameScheduleForTheSameSeed) {
  const Topology topology = *make_topology("torus:3,3");
  const auto bytes = [&](std::uint64_t seed) {
    FlowOptions options;
    options.seed = seed;
    options.effort = 0;
    const FlowSchedule schedule = searched(topology, options);
    std::vector<int> numbers;
    for (const Workload& w : schedule.all_gather) {
      numbers.insert(numbers.end(), {w.chunk, w.route, w.round});
    }
    return numbers;
  };
  EXPECT_EQ(bytes(1), bytes(1));
  EXPECT_NE(bytes(1), bytes(2));
}

TEST(FlowSearch, IsNeverWorseThanGreedyOnRandomNetworks) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Topology topology = random_topology(seed);
    FlowOptions options;
    options.effort = 0;
    const FlowSchedule schedule = searched(topology, options);
    const Result<FlowSchedule> greedy = schedule_greedy(topology, options);
    ASSERT_TRUE(greedy.ok());
    EXPECT_LE(schedule.rounds(), greedy->rounds()) << topology.name;
  }
}

// A slow server sends in the reduce-scatter and receives in the all-gather: both can go on at once.
TEST(FlowSearch, OverlapsPhasesWithoutABarrier) {
  Topology topology = *make_topology("switch:5");
  for (std::size_t l = 2; l < topology.links.size(); ++l) topology.links[l].capacity = 4;
  FlowOptions options;
  const double barrier = searched(topology, options).rounds();
  options.barrier = false;
  const double overlapped = searched(topology, options).rounds();
  EXPECT_EQ(barrier, 8);
  EXPECT_LT(overlapped, 0.8 * barrier);
}

TEST(FlowSearch, EndsAtOnceWhenItIsInterrupted) {
  const std::atomic<bool> interrupted = true;
  FlowOptions options;
  options.interrupted = &interrupted;
  searched(*make_topology("dcell:5,1"), options);
}

}  // namespace
}  // namespace agpcs
