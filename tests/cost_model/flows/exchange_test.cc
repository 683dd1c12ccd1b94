// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/exchange.h"

#include "cost_model/flows/time.h"
#include "tests/cost_model/step/steps.h"
#include "tests/support/builders.h"
#include "tests/support/plan_flows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

constexpr double kUs = 1e-6;

/// Four devices on one switch, ports of 1 GB/s and 1 us.
Cluster four_equal() {
  return cluster_of("kind unit fp32=1e12\nhost a unit 4 bandwidth=1e9 latency=1e-6\n");
}

TEST(FlowExchange, ARingTakesWhatARingTakes) {
  const Cluster cluster = four_equal();
  const std::vector<DeviceId> all = {0, 1, 2, 3};
  for (const std::int64_t bytes : {4'000, 4'000'000, 400'000'000}) {
    const Exchange ring = all_reduce(cluster, all, AllReduce::kRing, bytes);
    const Exchange flow = flow_all_reduce(cluster, all, ring_flow(4), bytes);
    EXPECT_NEAR(lone_seconds(cluster, flow) / lone_seconds(cluster, ring), 1, 2e-3) << bytes;
    ASSERT_EQ(flow.size(), 1u);
    EXPECT_NEAR(flow[0].latency / latency_of(ring), 1, 2e-3);
    EXPECT_EQ(flow[0].flows[0].bytes, ring[0].flows[0].bytes);
    EXPECT_EQ(flow[0].flows[0].links.size(), ring[0].flows[0].links.size());
  }
}

TEST(FlowExchange, AStarOnASwitchSavesLatencyOnly) {
  const Cluster cluster = four_equal();
  const Exchange star = flow_all_reduce(cluster, {0, 1, 2, 3}, star_flow(4), 400'000'000);
  EXPECT_NEAR(lone_seconds(cluster, star), 2.0 * 3 / 4 * 0.4, 2e-3);
  const Exchange tiny = flow_all_reduce(cluster, {0, 1, 2, 3}, star_flow(4), 4);
  EXPECT_NEAR(lone_seconds(cluster, tiny), 2 * 2 * kUs, 0.2 * kUs);
  const Exchange ring = all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kRing, 4);
  EXPECT_LT(lone_seconds(cluster, tiny), 0.4 * lone_seconds(cluster, ring));
}

// Every byte that the schedule moves is on the links that it moves over, whatever its messages have
// in common.
TEST(FlowExchange, CountsTheBytesOfAllMessages) {
  const Cluster cluster = four_equal();
  const std::int64_t bytes = 4'800'000;
  for (const PlanFlow& flow : {ring_flow(4, 2), star_flow(4), random_flow(4, 3, Rng(1))}) {
    const Exchange exchange = flow_all_reduce(cluster, {0, 1, 2, 3}, flow, bytes);
    const Flow& crossings = exchange[0].flows[0];
    EXPECT_EQ(crossings.bytes * static_cast<std::int64_t>(crossings.senders.size()),
              flow.message_count() * (bytes / 4 / flow.sub_chunks));
    EXPECT_EQ(crossings.senders.size(), crossings.receivers.size());
    EXPECT_EQ(crossings.links.size(), 2 * crossings.senders.size());
    const FlowSchedule schedule = schedule_of(flow, cluster, {0, 1, 2, 3});
    EXPECT_NEAR(lone_seconds(cluster, exchange) / schedule_seconds(cluster.links, schedule, bytes),
                1, 1e-9);
  }
}

TEST(FlowExchange, MeasuredOverheadsOfARingAreItsOwn) {
  Cluster cluster = four_equal();
  cluster.collectives[static_cast<std::size_t>(AllReduce::kRing)] = {3e-6, 2};
  const Exchange ring = all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kRing, 40'000'000);
  const Exchange flow = flow_all_reduce(cluster, {0, 1, 2, 3}, ring_flow(4), 40'000'000);
  EXPECT_NEAR(lone_seconds(cluster, flow) / lone_seconds(cluster, ring), 1, 2e-3);
}

TEST(FlowExchange, AFlowComesBackFromItsSchedule) {
  const Cluster cluster = four_equal();
  for (const PlanFlow& flow : {ring_flow(4), star_flow(4), random_flow(4, 2, Rng(2))}) {
    const FlowSchedule schedule = schedule_of(flow, cluster, {0, 1, 2, 3});
    EXPECT_TRUE(check_sums(schedule, 1).ok());
    EXPECT_EQ(plan_flow_of(schedule), flow);
  }
}

TEST(FlowExchange, AFlowTakesTheTimeOfItsOrder) {
  const Cluster cluster = four_equal();
  for (const PlanFlow& flow : {ring_flow(4, 2), star_flow(4), random_flow(4, 3, Rng(1))}) {
    const FlowSchedule schedule = schedule_of(flow, cluster, {0, 1, 2, 3});
    for (const PlanFlow& ordered : plan_flows_of(schedule)) {
      EXPECT_TRUE(verify_flow(ordered, 4).ok());
      const Exchange exchange = flow_all_reduce(cluster, {0, 1, 2, 3}, ordered, 4'800'000);
      const double seconds = schedule_seconds(cluster.links, schedule, 4'800'000,
                                              {0, 1, ordered.order, waits_of(ordered)});
      EXPECT_NEAR(lone_seconds(cluster, exchange) / seconds, 1, 1e-9);
    }
  }
}

TEST(FlowExchange, RoundsOfAPlanAreThoseOfItsSchedule) {
  const Cluster cluster = four_equal();
  // Round 2 has chunk 1 reduced and chunk 0 gathered; rounds 1, 3 and 4 are empty.
  FlowSchedule schedule;
  schedule.servers = 2;
  schedule.routes = {{0, 1, cluster.route(0, 1)}, {1, 0, cluster.route(1, 0)}};
  schedule.reduce_scatter = {{0, 1, 0}, {1, 0, 2}};
  schedule.all_gather = {{0, 0, 2}, {1, 1, 5}};
  const PlanFlow flow = plan_flow_of(schedule);
  ASSERT_EQ(flow.steps.size(), 4u);
  EXPECT_EQ(rounds_of(flow), (std::vector<int>{0, 1, 1, 2}));
  const FlowSchedule replayed = as_replayed(schedule);
  const FlowSchedule back = schedule_of(flow, cluster, {0, 1});
  for (const auto& [one, other] : {std::pair(&replayed.reduce_scatter, &back.reduce_scatter),
                                   std::pair(&replayed.all_gather, &back.all_gather)}) {
    ASSERT_EQ(one->size(), other->size());
    for (std::size_t i = 0; i < one->size(); ++i) EXPECT_EQ((*one)[i].round, (*other)[i].round);
  }
}

TEST(FlowExchange, TheSimulatorRunsAFlowAsLongAsItTakesAlone) {
  const std::string hosts = " unit 2 bandwidth=1e9 latency=1e-6 nic=1e8 nic-latency=1e-5\n";
  const Step step(chain_of(1), kUnit + ("host a" + hosts) + "host b" + hosts,
                  "stage a/0=2 a/1=2 b/0=2 b/1=2 : *\nbucket 0 flow:star w1\n", 8);
  const double alone = lone_seconds(
      step.cluster, flow_all_reduce(step.cluster, {0, 1, 2, 3}, star_flow(4), 64 * 64 * 4));
  const auto event = event_of(step.simulate(), 3, {Opcode::kAllReduce, 0, -1});
  EXPECT_NEAR(event.end - event.start, alone, 1e-12);
}

}  // namespace
}  // namespace agpcs
