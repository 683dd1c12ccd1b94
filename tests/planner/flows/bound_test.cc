// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/bound.h"

#include "planner/flows/max_flow.h"
#include "tests/planner/flows/random_topologies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

FlowBound bound_of(const std::string& spec) { return flow_bound(*make_topology(spec)); }

TEST(FlowBound, IsTheProvenOneOnThePapersNine) {
  struct Row {
    std::string_view topology;
    double whole, halves;  // K = 1 and K = 2
  };
  for (const Row& row :
       {Row{"bcube:3,1", 8, 8}, Row{"bcube:4,1", 16, 15}, Row{"bcube:5,1", 24, 24},
        Row{"dcell:4,1", 20, 19}, Row{"dcell:5,1", 30, 29}, Row{"dcell:6,1", 42, 41},
        Row{"jellyfish:10,4,links=20", 18, 18}, Row{"jellyfish:15,4,links=30", 28, 28},
        Row{"jellyfish:20,4,links=39", 38, 38}}) {
    for (int seed = 0; seed < (row.topology[0] == 'j' ? 5 : 1); ++seed) {
      const FlowBound bound = bound_of(std::string(row.topology) + ",seed=" + std::to_string(seed));
      EXPECT_EQ(bound.rounds(1), row.whole) << row.topology;
      EXPECT_EQ(bound.rounds(2), row.halves) << row.topology;
    }
  }
}

TEST(FlowBound, SaysWhatLimits) {
  EXPECT_EQ(bound_of("switch:16").reason, "server s0 receives 15 chunks over 1 units a round");
  EXPECT_EQ(bound_of("dgx:4,2").reason, "servers s0, s1 receive 6 chunks over 2 units a round");
  EXPECT_EQ(bound_of("dgx:4,2").all_gather, 3);
}

TEST(FlowBound, OverlappedCountsWhatBothPhasesNeed) {
  // 16 servers each get 15 chunks' parts and 15 sums, on 16 ports.
  EXPECT_EQ(bound_of("switch:16").overlapped, 30);
  EXPECT_EQ(bound_of("dgx:4,2").overlapped, 6);
  EXPECT_EQ(bound_of("bcube:4,1").overlapped_rounds(2), 15);
}

TEST(FlowBound, RoundsUpExactly) {
  // 15 chunks over 2 links: seven and a half rounds.
  const FlowBound bound = bound_of("bcube:4,1");
  EXPECT_EQ(bound.all_gather, 7.5);
  EXPECT_EQ(bound.exact_all_gather.sub_rounds(2), 15);
  EXPECT_EQ(bound.exact_all_gather.sub_rounds(3), 23);
  for (int k = 1; k < 500; ++k) {
    EXPECT_EQ((FlowRatio{49, 1}.sub_rounds(k)), 49 * k);
    EXPECT_EQ((FlowRatio{1, k}.sub_rounds(k)), 1);
  }
}

/// The worst cut by trying every set of nodes.
FlowRatio worst_cut_of_all(const Topology& topology) {
  FlowRatio worst;
  for (int set = 1; set < 1 << topology.nodes(); ++set) {
    int outside = 0, inside = 0;
    std::int64_t units = 0;
    for (int s = 0; s < topology.servers; ++s) ((set >> s & 1) != 0 ? inside : outside) += 1;
    if (inside == 0 || outside == 0) continue;
    for (const Topology::Link& link : topology.links) {
      if ((set >> link.from & 1) == 0 && (set >> link.to & 1) != 0) units += link.capacity;
    }
    if (outside * worst.units > worst.chunks * units) worst = {outside, units};
  }
  return worst;
}

TEST(FlowBound, IsTheWorstOfAllCutsOfRandomTopologies) {
  RandomTopologyOptions options;
  options.most_servers = 7;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Topology topology = random_topology(seed, options);
    const FlowBound bound = flow_bound(topology);
    EXPECT_GE(bound.all_gather, worst_cut_of_all(topology).value()) << seed;
    EXPECT_GE(bound.reduce_scatter, worst_cut_of_all(reversed(topology)).value()) << seed;
    if (bound.reason.find("hops") == std::string::npos) {
      EXPECT_EQ(std::max(bound.all_gather, bound.reduce_scatter),
                std::max(worst_cut_of_all(topology).value(),
                         worst_cut_of_all(reversed(topology)).value()))
          << seed;
    }
    EXPECT_LE(flow_bound(topology, false).all_gather, bound.all_gather) << seed;
    EXPECT_GE(bound.overlapped, std::max(bound.all_gather, bound.reduce_scatter)) << seed;
    EXPECT_LE(bound.overlapped, bound.all_gather + bound.reduce_scatter + 1e-9) << seed;
  }
}

TEST(MaxFlow, IsTheMinimumCutOfRandomNetworks) {
  constexpr int kNodes = 7;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng = Rng(seed).fork("network");
    MaxFlow network(kNodes);
    network.set_source(0, true);
    std::vector<Topology::Link> arcs;
    for (int a = 0; a < 16; ++a) {
      const Topology::Link arc = {static_cast<int>(rng.below(kNodes)),
                                  static_cast<int>(rng.below(kNodes)),
                                  1 + static_cast<int>(rng.below(3))};
      if (arc.from == arc.to) continue;
      arcs.push_back(arc);
      network.add(arc.from, arc.to, arc.capacity);
    }
    const int sink = kNodes - 1;
    std::int64_t least = 1000;
    for (int set = 0; set < 1 << kNodes; ++set) {  // the source's side
      if ((set & 1) == 0 || (set >> sink & 1) != 0) continue;
      std::int64_t cut = 0;
      for (const Topology::Link& arc : arcs) {
        if ((set >> arc.from & 1) != 0 && (set >> arc.to & 1) == 0) cut += arc.capacity;
      }
      least = std::min(least, cut);
    }
    EXPECT_EQ(static_cast<std::int64_t>(network.run(sink, 1000)), least) << seed;
    EXPECT_EQ(static_cast<std::int64_t>(network.run(sink, 1000)), least) << seed << " again";
  }
}

TEST(MaxFlow, TakesBackWhatAShorterWayTook) {
  // The shortest way 0-1-2-7 stands in both long ones: 0-1-3-4-7 and 0-5-6-2-7.
  MaxFlow network(8);
  network.set_source(0, true);
  const int arcs[][2] = {{0, 1}, {1, 2}, {2, 7}, {1, 3}, {3, 4}, {4, 7}, {0, 5}, {5, 6}, {6, 2}};
  for (const auto& [from, to] : arcs) network.add(from, to, 1);
  EXPECT_EQ(static_cast<int>(network.run(7, 10)), 2);
}

TEST(MaxFlow, FindsTheFlowAndTheCut) {
  MaxFlow network(5);  // 0 -> {1, 2} -> 3 -> 4
  network.set_source(0, true);
  network.add(0, 1, 4);
  network.add(0, 2, 3);
  network.add(1, 3, 2);
  network.add(2, 3, 9);
  const int last = network.add(3, 4, 100);
  EXPECT_TRUE(network.run(4, 1000) == 5);
  EXPECT_EQ(network.sink_side(), (std::vector<bool>{false, false, true, true, true}));
  EXPECT_TRUE(network.run(4, 3) == 3);
  network.set_capacity(last, 1);
  EXPECT_TRUE(network.run(4, 1000) == 1);
  network.set_source(3, true);
  EXPECT_TRUE(network.run(3, 7) == 7);
}

// Hosts of 8: what enters a host in the last round reaches one server only.
TEST(FlowBound, LeavesARoundForSpreadingInsideACut) {
  const FlowBound bound = flow_bound(*make_topology("dgx:4,8"));
  EXPECT_EQ(bound.all_gather, 3);
  EXPECT_EQ(bound.exact_all_gather.inside, 8);
  EXPECT_EQ(bound.exact_all_gather.entering, 8);
  EXPECT_EQ(bound.rounds(1), 2 * 4);
  EXPECT_EQ(bound.rounds(2), 2 * 3.5);  // 6 sub-rounds are full, but for one unit in 8
}

}  // namespace
}  // namespace agpcs
