// SPDX-License-Identifier: Apache-2.0
// Bound and methods against the fewest rounds there can be, on random topologies.
#include "planner/flows/bound.h"
#include "planner/flows/method.h"
#include "tests/planner/flows/exact_rounds.h"
#include "tests/planner/flows/random_topologies.h"

#include <gtest/gtest.h>

#include <optional>

namespace agpcs {
namespace {

TEST(ExactRounds, AreThoseWorkedOutByHand) {
  // Three chunks to each over two links, of which the far one comes by a neighbour.
  EXPECT_EQ(exact_rounds_by_search(*make_topology("torus:4"), 1, 1'000'000), 2);
  EXPECT_EQ(exact_rounds_by_search(*make_topology("switch:4"), 1, 1'000'000), 3);
  Topology path = *make_topology("torus:4");
  path.links.resize(6);  // s0 - s1 - s2 - s3
  EXPECT_EQ(exact_rounds_by_search(path, 1, 1'000'000), 3);
  if (!have_sat_solver()) GTEST_SKIP() << "no cadical";
  EXPECT_EQ(exact_rounds_by_sat(*make_topology("torus:4"), 1, 10), 2);
  EXPECT_EQ(exact_rounds_by_sat(*make_topology("switch:4"), 3, 10), 3);
  EXPECT_EQ(exact_rounds_by_sat(path, 1, 10), 3);
}

/// The bound of the phase is at most `exact`, which no method undercuts.
void expect_between(const Topology& topology, int exact, int exact_back) {
  const FlowBound bound = flow_bound(topology);
  EXPECT_LE(bound.exact_all_gather.sub_rounds(1), exact) << topology.name;
  EXPECT_LE(bound.exact_reduce_scatter.sub_rounds(1), exact_back) << topology.name;
  for (const FlowMethod& method : flow_methods()) {
    FlowOptions options;
    options.max_sub_chunks = 1;
    const Result<FlowSchedule> schedule = method.schedule(topology, options);
    if (!schedule.ok()) continue;
    EXPECT_GE(schedule->all_gather_rounds(), exact) << method.name << " on " << topology.name;
    EXPECT_GE(schedule->reduce_scatter_rounds(), exact_back)
        << method.name << " on " << topology.name;
  }
}

TEST(ExactRounds, LieBetweenBoundAndMethodsOnTinyTopologies) {
  RandomTopologyOptions options;
  options.most_servers = 4;
  options.most_switches = 2;
  options.most_capacity = 2;
  int known = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Topology topology = random_topology(seed, options);
    const auto exact = exact_rounds_by_search(topology, 1, 100'000);
    const auto back = exact_rounds_by_search(reversed(topology), 1, 100'000);
    if (!exact || !back) continue;
    ++known;
    expect_between(topology, *exact, *back);
    if (have_sat_solver() && seed % 4 == 0) {
      EXPECT_EQ(exact_rounds_by_sat(topology, 1, 10), exact) << topology.name;
    }
  }
  EXPECT_GE(known, 30);
}

TEST(ExactRounds, LieBetweenBoundAndMethodsUpToTwelveServers) {
  if (!have_sat_solver()) GTEST_SKIP() << "no cadical";
  RandomTopologyOptions options;
  options.least_servers = 5;
  int known = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Topology topology = random_topology(1000 + seed, options);
    const FlowBound bound = flow_bound(topology);
    const auto gather = static_cast<int>(bound.exact_all_gather.sub_rounds(1));
    const auto scatter = static_cast<int>(bound.exact_reduce_scatter.sub_rounds(1));
    const auto exact = exact_rounds_by_sat(topology, gather, 5);
    const auto back = exact_rounds_by_sat(reversed(topology), scatter, 5);
    if (!exact || !back) continue;
    ++known;
    expect_between(topology, *exact, *back);
  }
  EXPECT_GE(known, 8);
}

}  // namespace
}  // namespace agpcs
