// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/time.h"

#include "cost_model/network/link_model.h"
#include "tests/support/builders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;

/// A message: "round chunk from to", in the order of a schedule.
struct Step {
  int round, chunk, from, to;
};

/// Routes are one link each: those of `links`, pairs of servers.
FlowSchedule schedule_of(int servers, int sub_chunks, const std::vector<std::pair<int, int>>& links,
                         const std::vector<Step>& reduce, const std::vector<Step>& gather) {
  FlowSchedule schedule;
  schedule.servers = servers;
  schedule.sub_chunks = sub_chunks;
  for (std::size_t i = 0; i < links.size(); ++i) {
    schedule.routes.push_back({links[i].first, links[i].second, {static_cast<int>(i)}});
  }
  const auto add = [&](const std::vector<Step>& steps, std::vector<Workload>& workloads) {
    for (const Step& step : steps) {
      const auto at = std::find(links.begin(), links.end(), std::pair(step.from, step.to));
      workloads.push_back({step.chunk, static_cast<int>(at - links.begin()), step.round});
    }
    std::sort(workloads.begin(), workloads.end(), [](const Workload& a, const Workload& b) {
      return std::tuple(a.round, a.chunk, a.route) < std::tuple(b.round, b.chunk, b.route);
    });
  };
  add(reduce, schedule.reduce_scatter);
  add(gather, schedule.all_gather);
  return schedule;
}

FlowSchedule ring(int n) {
  std::vector<std::pair<int, int>> links;
  std::vector<Step> reduce, gather;
  for (int s = 0; s < n; ++s) links.emplace_back(s, (s + 1) % n);
  for (int t = 0; t < n - 1; ++t) {
    for (int r = 0; r < n; ++r) {
      reduce.push_back({t, r, (r + 1 + t) % n, (r + 2 + t) % n});
      gather.push_back({n - 1 + t, r, (r + t) % n, (r + t + 1) % n});
    }
  }
  return schedule_of(n, 1, links, reduce, gather);
}

std::vector<Link> equal_links(std::size_t count, double bandwidth, double latency) {
  return std::vector<Link>(count, Link{"", "test", bandwidth, latency, {}});
}

TEST(FlowTime, ARingTakesItsStepsOneAfterAnother) {
  const std::vector<Link> links = equal_links(4, 1e9, 5e-6);
  EXPECT_DOUBLE_EQ(schedule_seconds(links, ring(4), 4'000'000), 6 * (5e-6 + 1e-3));
  EXPECT_DOUBLE_EQ(lockstep_seconds(links, ring(4), 4'000'000), 6 * (5e-6 + 1e-3));
}

TEST(FlowTime, ARingOnAClusterTakesWhatTheLinkModelSaysOfRings) {
  const Cluster cluster = cluster_of(
      "kind unit fp32=1e12\n"
      "host a unit 2 bandwidth=10e9 latency=1e-6 nic=2e9 nic-latency=5e-6\n"
      "host b unit 2 bandwidth=10e9 latency=1e-6 nic=2e9 nic-latency=5e-6\n");
  FlowSchedule schedule = ring(4);
  for (FlowRoute& route : schedule.routes) route.links = cluster.route(route.from, route.to);
  const double seconds = schedule_seconds(cluster.links, schedule, 40'000'000);
  const double model =
      lone_seconds(cluster, all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kRing, 40'000'000));
  EXPECT_LE(seconds, model);  // hops inside a host do not wait for those between hosts
  EXPECT_GT(seconds, 0.9 * model);
}

TEST(FlowTime, BytesAreRoundedUpToWholeSubChunks) {
  EXPECT_EQ(message_bytes(ring(4), 4), 1);
  EXPECT_EQ(message_bytes(ring(4), 5), 2);
  EXPECT_EQ(message_bytes(ring(4), 1), 1);
}

TEST(FlowTime, MessagesToOnePeerFollowEachOtherWhileTheFirstTravels) {
  const FlowSchedule schedule =
      schedule_of(2, 2, {{0, 1}, {1, 0}}, {{0, 0, 1, 0}, {1, 1, 1, 0}}, {});
  const std::vector<Link> links = equal_links(2, 1e9, 1e-3);
  // 1 MB each: the latency passes once.
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 4'000'000), 1e-3 + 2 * 1e-3);
  EXPECT_DOUBLE_EQ(lockstep_seconds(links, schedule, 4'000'000), 2 * (1e-3 + 1e-3));
}

TEST(FlowTime, MessagesOverOneLinkShareIt) {
  // Servers 1 and 2 send to 0 at once; both cross link 2, into server 0.
  FlowSchedule schedule = schedule_of(3, 1, {{1, 0}, {2, 0}}, {{0, 0, 1, 0}, {0, 0, 2, 0}}, {});
  schedule.routes[0].links = {0, 2};
  schedule.routes[1].links = {1, 2};
  std::vector<Link> links = equal_links(3, 1e9, 0);
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 3'000'000), 2e-3);
  links[2].bandwidth = 2e9;
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 3'000'000), 1e-3);
}

/// In rounds.
FlowOverheads in_rounds(std::vector<RoundWait> waits = {}) {
  return {0, 1, FlowOrder::kRounds, std::move(waits)};
}

TEST(FlowTime, RoundsAreNoBarriers) {
  // A chain 0 -> 1 -> 2 for chunk 2, and one slow message 1 -> 0 for chunk 0 in its first round.
  const FlowSchedule schedule =
      schedule_of(3, 1, {{0, 1}, {1, 2}, {1, 0}}, {{0, 2, 0, 1}, {0, 0, 1, 0}, {1, 2, 1, 2}}, {});
  std::vector<Link> links = equal_links(3, 1e9, 0);
  links[2].bandwidth = 0.5e9;
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 3'000'000), 2e-3);
  EXPECT_DOUBLE_EQ(lockstep_seconds(links, schedule, 3'000'000), 2e-3 + 1e-3);
  // Server 1 ends its first round before it begins its second one.
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 3'000'000, in_rounds()), 2e-3 + 1e-3);
}

TEST(FlowTime, AServerSendsAChunkOnceItHasAllOfItsChildren) {
  // 1 and 2 send to 3, which sends to the owner 0; then 0 spreads it.
  const FlowSchedule schedule =
      schedule_of(4, 1, {{1, 3}, {2, 3}, {3, 0}, {0, 3}},
                  {{0, 0, 1, 3}, {0, 0, 2, 3}, {1, 0, 3, 0}}, {{2, 0, 0, 3}});
  std::vector<Link> links = equal_links(4, 1e9, 0);
  links[1].bandwidth = 0.25e9;
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 4'000'000), 4e-3 + 1e-3 + 1e-3);
}

TEST(FlowTime, OverheadsAddToEachMessage) {
  const std::vector<Link> links = equal_links(4, 1e9, 5e-6);
  EXPECT_DOUBLE_EQ(schedule_seconds(links, ring(4), 4'000'000, {1e-4, 1.5}),
                   6 * (1e-4 + 5e-6 + 1.5e-3));
  EXPECT_DOUBLE_EQ(lockstep_seconds(links, ring(4), 4'000'000, {1e-4, 1.5}),
                   6 * (1e-4 + 5e-6 + 1.5e-3));
}

TEST(FlowTime, AnExchangeOfAllWithAllIsAsFastAsItsFullestLinks) {
  const int n = 24;
  FlowSchedule schedule;  // server s has link 2s out and link 2s + 1 in
  schedule.servers = n;
  std::vector<Link> links = equal_links(2 * n, 1e9, 0);
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i].bandwidth *= 1 + 0.01 * static_cast<double>(i * 7 % 13);
  }
  for (int t = 1; t < n; ++t) {
    for (int u = 0; u < n; ++u) {
      const int v = (u + t) % n;
      const auto route = static_cast<int>(schedule.routes.size());
      schedule.routes.push_back({u, v, {2 * u, 2 * v + 1}});
      schedule.reduce_scatter.push_back({v, route, 0});
    }
  }
  const double fullest = (n - 1) * 1e-3;
  const double seconds = schedule_seconds(links, schedule, n * 1'000'000);
  EXPECT_GE(seconds, fullest * 0.999);
  EXPECT_LE(seconds, fullest * 1.01);
}

TEST(FlowTime, LargeSchedulesAreTimedInLockstep) {
  const FlowSchedule schedule = ring(320);
  ASSERT_GT(schedule.reduce_scatter.size() + schedule.all_gather.size(), kMostTimedWorkloads);
  std::vector<Link> links = equal_links(320, 1e9, 1e-6);
  links[7].bandwidth = 0.5e9;
  EXPECT_EQ(schedule_seconds(links, schedule, 320'000'000),
            lockstep_seconds(links, schedule, 320'000'000));
}

TEST(FlowTime, InRoundsWhatIsNotUrgentWaits) {
  // Server 1 sends chunk 0 to its owner in round 0, chunk 3 to server 2 in round 1; both cross link
  // 3 out of it. Server 2's part of chunk 0 comes in round 1 and is on its way for 2 ms.
  FlowSchedule schedule =
      schedule_of(4, 1, {{1, 0}, {1, 2}, {2, 0}}, {{0, 0, 1, 0}, {1, 3, 1, 2}, {1, 0, 2, 0}}, {});
  schedule.routes[0].links = {3};
  schedule.routes[1].links = {3, 1};
  schedule.routes[2].links = {2};
  std::vector<Link> links = equal_links(4, 1e9, 0);
  links[2].bandwidth = 0.5e9;
  // Server 0 asks for the second part when it has the first one, which shares link 3.
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 4'000'000), 2e-3 + 2e-3);
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 4'000'000, in_rounds()), 1e-3 + 2e-3);
}

TEST(FlowTime, InRoundsALatencyPassesAfterTheRoundsBefore) {
  const FlowSchedule schedule =
      schedule_of(2, 2, {{0, 1}, {1, 0}}, {{0, 0, 1, 0}, {1, 1, 1, 0}}, {});
  const std::vector<Link> links = equal_links(2, 1e9, 1e-3);
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 4'000'000, in_rounds()), 2 * (1e-3 + 1e-3));
}

TEST(FlowTime, AWordHoldsBackWhatWouldShareALink) {
  // 1 -> 0, then 2 -> 3; both cross link 3.
  FlowSchedule schedule = schedule_of(4, 1, {{1, 0}, {2, 3}}, {{0, 0, 1, 0}, {1, 3, 2, 3}}, {});
  schedule.routes[0].links = {0, 3};
  schedule.routes[1].links = {3};
  const std::vector<Link> links = equal_links(4, 1e9, 1e-4);
  // The latencies of the two are 0.2 and 0.1 ms; then they share the link until the first is over.
  EXPECT_NEAR(schedule_seconds(links, schedule, 4'000'000, in_rounds()), 2.1e-3, 1e-5);
  const std::vector<RoundWait> waits = link_waits(schedule);
  EXPECT_EQ(waits, (std::vector<RoundWait>{{1, 0, 2}}));
  // The first, a word as long as the longest latency, the second.
  EXPECT_DOUBLE_EQ(schedule_seconds(links, schedule, 4'000'000, in_rounds(waits)),
                   (0.2e-3 + 1e-3) + 0.2e-3 + (0.1e-3 + 1e-3));
}

TEST(FlowTime, ARingTakesTurnsAnyway) {
  std::vector<Link> links = equal_links(5, 1e9, 5e-6);
  links[2].bandwidth = 0.7e9;
  EXPECT_TRUE(link_waits(ring(5)).empty());
  // But for latencies, which pass ahead by receivers.
  EXPECT_NEAR(schedule_seconds(links, ring(5), 5'000'000, in_rounds()),
              schedule_seconds(links, ring(5), 5'000'000), 8 * 5e-6);
}

TEST(FlowTime, LinksOfATopologyHaveItsCapacities) {
  Topology topology;
  topology.name = "two";
  topology.servers = 2;
  topology.node_names = {"s0", "s1"};
  topology.links = {{0, 1, 3}, {1, 0, 1}};
  const std::vector<Link> links = links_of(topology, 1e9, 2e-6);
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(links[0].name, "s0 -> s1");
  EXPECT_DOUBLE_EQ(links[0].bandwidth, 3e9);
  EXPECT_DOUBLE_EQ(links[1].bandwidth, 1e9);
  EXPECT_DOUBLE_EQ(links[1].latency, 2e-6);
}

}  // namespace
}  // namespace agpcs
