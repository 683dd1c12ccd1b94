// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/policy/policy.h"

#include "ir/base/rng.h"
#include "planner/flows/methods.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

/// One of every family, with failed cables and capacities among them; and links that lead one way.
std::vector<Topology> all_kinds() {
  std::vector<Topology> result;
  for (const char* spec :
       {"bcube:3,1", "dcell:3,1", "jellyfish:8,3,seed=2", "fat_tree:4", "torus:3,4", "torus:2,2,3",
        "switch:5", "dgx:2,4", "bcube:3,1,fail=0.1,seed=3", "torus:2"}) {
    result.push_back(*make_topology(spec));
  }
  Rng rng(7);
  Topology uneven = *make_topology("torus:3,3");
  uneven.name = "uneven";
  for (Topology::Link& link : uneven.links) {
    link.capacity = 1 + static_cast<std::int64_t>(rng.below(3));
  }
  result.push_back(uneven);
  Topology circle = *make_topology("torus:5");
  circle.name = "circle";
  std::vector<Topology::Link> forward;
  for (std::size_t l = 0; l < circle.links.size(); l += 2) forward.push_back(circle.links[l]);
  circle.links = forward;
  result.push_back(circle);
  return result;
}

std::string text_of(const FlowSchedule& schedule) {
  std::string text = fmt::format("{} {}\n", schedule.servers, schedule.sub_chunks);
  for (const auto* phase : {&schedule.reduce_scatter, &schedule.all_gather}) {
    for (const Workload& w : *phase) {
      const auto& links = schedule.routes[static_cast<std::size_t>(w.route)].links;
      text += fmt::format("{} {} {}\n", w.round, w.chunk, fmt::join(links, ","));
    }
  }
  return text;
}

TEST(FlowForest, HasTreesOfAllServersOnEveryTopology) {
  for (const Topology& topology : all_kinds()) {
    for (const ForestKind kind : {ForestKind::kShortest, ForestKind::kBalanced}) {
      const FlowForest forest = make_forest(topology, {kind, 2, 1}, true);
      EXPECT_EQ(verify_forest(topology, forest).message(), "") << topology.name;
    }
  }
}

TEST(FlowForest, ShortestTreesReachEveryServerOnAShortestPath) {
  const Topology grid = *make_topology("torus:5,5");
  const FlowForest forest = make_forest(grid, {ForestKind::kShortest, 1, 3}, false);
  for (const FlowTree& tree : forest.trees) {
    for (int s = 0; s < grid.servers; ++s) {
      int hops = 0;
      for (int at = s; at != tree.chunk; ++hops) {
        at = forest.routes[static_cast<std::size_t>(tree.down[static_cast<std::size_t>(at)])].from;
      }
      const auto around = [](int a, int b) { return std::min((a - b + 5) % 5, (b - a + 5) % 5); };
      EXPECT_EQ(hops, around(s % 5, tree.chunk % 5) + around(s / 5, tree.chunk / 5));
    }
  }
}

TEST(FlowForest, BalancedTreesNeedNoMoreRoundsThanTheNarrowestServerAllows) {
  // Rounds of one chunk a server over its ports; shortest paths need 20% to 60% more.
  const std::map<std::string, double> ports = {{"bcube:3,1", 4},
                                               {"bcube:5,1", 12},
                                               {"dcell:4,1", 9.5},
                                               {"dcell:6,1", 20.5},
                                               {"torus:6,6", 8.75}};
  for (const auto& [spec, rounds] : ports) {
    const Topology topology = *make_topology(spec);
    const FlowForest even = make_forest(topology, {ForestKind::kBalanced, 1, 1}, false);
    EXPECT_LE(heaviest_link(topology, even, true), rounds + 1) << spec;
    const FlowForest shortest = make_forest(topology, {ForestKind::kShortest, 1, 1}, false);
    EXPECT_GT(heaviest_link(topology, shortest, true), 1.2 * rounds) << spec;
  }
}

TEST(FlowForest, HostsWithFastInsidesPassChunksOnInside) {
  const Topology hosts = *make_topology("dgx:4,8");  // 24 chunks over 8 cards a host
  const FlowForest forest = make_forest(hosts, {ForestKind::kBalanced, 1, 1}, false);
  EXPECT_LE(heaviest_link(hosts, forest, true), 4);
}

TEST(FlowForest, SameSeedSameTrees) {
  const Topology topology = *make_topology("dcell:3,1");
  const auto trees = [&](std::uint64_t seed) {
    std::vector<std::int32_t> parents;
    for (const FlowTree& tree :
         make_forest(topology, {ForestKind::kBalanced, 2, seed}, true).trees) {
      parents.insert(parents.end(), tree.down.begin(), tree.down.end());
      parents.insert(parents.end(), tree.up.begin(), tree.up.end());
    }
    return parents;
  };
  EXPECT_EQ(trees(1), trees(1));
  EXPECT_NE(trees(1), trees(2));
}

TEST(FlowEnvironment, ChangedFeaturesAreWhatTheyWouldBeMeasuredAnew) {
  const Topology topology = *make_topology("jellyfish:8,3,seed=2");
  const FlowForest forest = make_forest(topology, {ForestKind::kBalanced, 1, 1}, true);
  FlowEnvironment environment(topology, forest, FlowPhases::kOverlapped);
  const std::vector<std::uint8_t> all(forest.trees.size(), 1);
  Rng rng(3);
  while (!environment.done()) {
    environment.begin_round();
    environment.select(all);
    std::map<int, std::vector<float>> seen;
    const auto see = [&](int i) {
      const auto row = environment.features(static_cast<std::size_t>(i));
      seen[i].assign(row.begin(), row.end());
    };
    for (int i = 0; i < static_cast<int>(environment.ready().size()); ++i) see(i);
    while (environment.open() > 0) {
      const auto drawn = static_cast<std::size_t>(rng.below(environment.ready().size()));
      if (!environment.is_open(drawn)) continue;
      for (const int i : environment.take(drawn)) see(i);
      for (const auto& [i, row] : seen) {
        if (!environment.is_open(static_cast<std::size_t>(i))) continue;
        const auto now = environment.features(static_cast<std::size_t>(i));
        EXPECT_TRUE(std::equal(row.begin(), row.end(), now.begin()));
        for (const float x : now) EXPECT_TRUE(x >= 0 && x <= 3) << x;
      }
    }
    environment.end_round();
  }
}

TEST(FlowEnvironment, WorkloadsOfTreesThatAreNotSelectedAreClosed) {
  const Topology topology = *make_topology("switch:4");
  const FlowForest forest = make_forest(topology, {ForestKind::kShortest, 1, 1}, false);
  FlowEnvironment environment(topology, forest, FlowPhases::kGather);
  environment.begin_round();
  environment.select(std::vector<std::uint8_t>{0, 1, 0, 0});
  EXPECT_EQ(environment.open(), 3);
  for (std::size_t i = 0; i < environment.ready().size(); ++i) {
    EXPECT_EQ(environment.is_open(i), environment.ready()[i].chunk == 1);
  }
  environment.take(
      static_cast<std::size_t>(std::find_if(environment.ready().begin(), environment.ready().end(),
                                            [](const auto& job) { return job.chunk == 1; }) -
                               environment.ready().begin()));
  EXPECT_EQ(environment.open(), 0);  // server 1's only link is full
  EXPECT_EQ(environment.end_round(), 1);
}

TEST(FlowEnvironment, LeftOverUnitsTakeWorkloadsThatWouldComeAnotherWay) {
  // Chunk 0 is to go round the ring one way; its owner's other cable idles.
  const Topology ring = *make_topology("torus:4");
  FlowForest forest = make_forest(ring, {ForestKind::kShortest, 1, 1}, false);
  const auto route = [&](int from, int to) {
    const auto found =
        std::find_if(forest.routes.begin(), forest.routes.end(),
                     [&](const FlowRoute& r) { return r.from == from && r.to == to; });
    return static_cast<std::int32_t>(found - forest.routes.begin());
  };
  forest.trees[0].down = {-1, route(0, 1), route(1, 2), route(2, 3)};
  FlowEnvironment environment(ring, forest, FlowPhases::kGather);
  environment.begin_round();
  environment.select(std::vector<std::uint8_t>{1, 0, 0, 0});
  environment.fill_idle();
  EXPECT_EQ(environment.end_round(), 8);  // every unit, among them server 0 to 3
  const FlowSchedule sent = environment.schedule();
  EXPECT_TRUE(std::any_of(sent.all_gather.begin(), sent.all_gather.end(), [&](const Workload& w) {
    const FlowRoute& way = sent.routes[static_cast<std::size_t>(w.route)];
    return w.chunk == 0 && way.from == 0 && way.to == 3;
  }));
}

TEST(FlowPolicy, DetoursSaveRounds) {
  FlowOptions options;
  options.max_sub_chunks = 1;
  FlowRules fixed;
  fixed.detours = false;
  double with = 0, without = 0;
  for (const char* spec : {"torus:3,3,3", "dgx:8,4", "bcube:2,3", "torus:6,6"}) {
    const Topology topology = *make_topology(spec);
    with += schedule_by_policy(topology, options, shipped_flow_policy()).rounds();
    without += schedule_by_policy(topology, options, shipped_flow_policy(), fixed).rounds();
  }
  EXPECT_LT(with, without - 4);
}

TEST(FlowPolicy, SchedulesAreValidAndSumOnEveryTopology) {
  const FlowPolicy random = random_flow_policy(4, 5);
  for (const Topology& topology : all_kinds()) {
    for (const bool barrier : {true, false}) {
      for (const FlowPolicy* policy : {&shipped_flow_policy(), &random}) {
        FlowOptions options;
        options.barrier = barrier;
        const FlowSchedule schedule = schedule_by_policy(topology, options, *policy);
        EXPECT_EQ(verify_schedule(topology, schedule).message(), "") << topology.name;
        EXPECT_EQ(check_sums(schedule, 1).message(), "") << topology.name;
      }
    }
  }
}

TEST(FlowPolicy, ThePapersOwnFormIsValidToo) {
  for (const Topology& topology : all_kinds()) {
    for (const FlowPhases phases : {FlowPhases::kBarrier, FlowPhases::kOverlapped}) {
      const FlowForest forest = make_forest(topology, {ForestKind::kShortest, 1, 4}, true);
      const FlowSchedule schedule = play_policy(topology, forest, phases, shipped_flow_policy());
      EXPECT_EQ(verify_schedule(topology, schedule).message(), "") << topology.name;
      EXPECT_EQ(check_sums(schedule, 1).message(), "") << topology.name;
    }
  }
}

TEST(FlowPolicy, SimpleRulesAreValidToo) {
  const Topology topology = *make_topology("dcell:3,1");
  const FlowForest forest = make_forest(topology, {ForestKind::kShortest, 1, 4}, true);
  for (const WorkloadRule rule :
       {WorkloadRule::kFirstCome, WorkloadRule::kLongestChain, WorkloadRule::kRarestFirst}) {
    const FlowSchedule schedule = play_policy(topology, forest, FlowPhases::kOverlapped,
                                              shipped_flow_policy(), {TreeRule::kAll, rule});
    EXPECT_EQ(verify_schedule(topology, schedule).message(), "");
  }
}

TEST(FlowPolicy, SameSeedSameSchedule) {
  const Topology topology = *make_topology("dcell:3,1");
  FlowOptions options;
  const std::string text = text_of(*schedule_policy(topology, options));
  EXPECT_EQ(text_of(*schedule_policy(topology, options)), text);
  options.seed = 1;
  EXPECT_NE(text_of(*schedule_policy(topology, options)), text);
}

TEST(FlowPolicy, MoreEffortIsNeverWorse) {
  const Topology topology = *make_topology("torus:3,4");
  FlowOptions options;
  const double once = schedule_policy(topology, options)->rounds();
  options.effort = 6;
  EXPECT_LE(schedule_policy(topology, options)->rounds(), once);
}

TEST(FlowPolicy, TakesFewerRoundsThanThePapersOnItsNineTopologies) {
  const std::map<std::string, double> papers = {{"bcube:3,1", 10.2},
                                                {"bcube:4,1", 20.8},
                                                {"bcube:5,1", 34.7},
                                                {"dcell:4,1", 23.2},
                                                {"dcell:5,1", 33.8},
                                                {"dcell:6,1", 48.0},
                                                {"jellyfish:10,4,links=20", 22.7},
                                                {"jellyfish:15,4,links=30", 39.9},
                                                {"jellyfish:20,4,links=39", 62.2}};
  for (const auto& [spec, rounds] : papers) {
    EXPECT_LT(schedule_policy(*make_topology(spec), {})->rounds(), rounds) << spec;
  }
}

TEST(FlowPolicy, FastNetworksGiveTheSameValues) {
  Rng rng(1);
  for (const int units : {1, 7, 16, 19}) {
    const FlowPolicy policy = random_flow_policy(units, 2);
    const FastPerceptron fast(policy.workloads);
    for (int i = 0; i < 50; ++i) {
      std::vector<float> features(kWorkloadFeatureCount);
      for (float& x : features) x = rng.below(3) == 0 ? 0 : static_cast<float>(rng.uniform());
      EXPECT_EQ(fast.value(features), policy.workloads.value(features));
    }
  }
}

TEST(FlowPolicy, FileReadsBackAsItWasWritten) {
  FlowPolicy policy = random_flow_policy(5, 3);
  policy.made_by = "a test";
  const std::string text = print_flow_policy(policy);
  const Result<FlowPolicy> read = parse_flow_policy(text, "my.policy");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_flow_policy(*read), text);
  EXPECT_EQ(read->made_by, "a test");
  EXPECT_EQ(read->trees.features(), kTreeFeatureCount);
  EXPECT_EQ(read->workloads.features(), kWorkloadFeatureCount);
}

TEST(FlowPolicy, FilesThatAreNoneAreRefusedWithTheirLine) {
  const std::string text = print_flow_policy(random_flow_policy(2, 3));
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string wrong = text;
    wrong.replace(wrong.find(from), from.size(), to);
    return parse_flow_policy(wrong, "my.policy").status().message();
  };
  EXPECT_THAT(error("agpcs-flow-policy 1", "agpcs-flow-policy 2"),
              HasSubstr("my.policy:1:1: error: version 2 of the policy format"));
  EXPECT_THAT(error("agpcs-flow-policy 1", "agpcs-policy 1"),
              HasSubstr("'agpcs-policy' where 'agpcs-flow-policy' is expected"));
  EXPECT_THAT(error("network workloads", "network trees"),
              HasSubstr("'trees' where 'workloads' is expected"));
  EXPECT_THAT(error(fmt::format("features {}", static_cast<int>(kTreeFeatureCount)), "features 3"),
              HasSubstr("judges trees by 3 features"));
  EXPECT_THAT(error("output-bias 0", "output-bias x"), HasSubstr("'x' is no number"));
  EXPECT_THAT(parse_flow_policy(text + "more\n", "my.policy").status().message(),
              HasSubstr("more lines after 'output-bias'"));
  EXPECT_THAT(parse_flow_policy(text.substr(0, text.size() - 1), "p").status().message(),
              HasSubstr("its last line does not end"));
}

}  // namespace
}  // namespace agpcs
