// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/overhead.h"

#include "cost_model/step/cost_table.h"
#include "cost_model/step/simulator.h"
#include "tests/support/builders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

constexpr double kLatency = 100e-6;  // half a round trip
constexpr double kLittle = 20e-6, kMuch = 35e-6;

/// Simulated seconds of an idle plan on hosts of one device each, whose computing takes no time and
/// whose links take 100 us and no time for bytes. `overheads` of messages, by device.
double simulated(const std::vector<double>& overheads, int micro_batches) {
  std::string text;
  for (std::size_t i = 0; i < overheads.size(); ++i) {
    text += fmt::format(
        "kind k{0} fp32=1e30 bandwidth=1e30 launch=0\n"
        "host h{0} k{0} 1 bandwidth=1e30 latency=0 nic=1e30 nic-latency=50e-6\n",
        i);
  }
  Cluster cluster = testing::cluster_of(text);
  for (std::size_t i = 0; i < overheads.size(); ++i) {
    cluster.kinds[i].message_overhead = overheads[i];
  }
  const Graph graph = testing::graph_of(
      "input x [n,1]\ns0 = Relu(x) [n,1]\ns1 = Relu(s0) [n,1]\noutputs s1\nloss s1\n");
  const Plan plan = idle_plan(cluster, cluster.device_count(), micro_batches);
  const auto costs = CostTable::make(graph, cluster, plan.training);
  AGPCS_CHECK(costs.ok(), "{}", costs.status().message());
  const auto estimate = simulate(plan, graph, cluster, *costs);
  AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
  return estimate->step_seconds;
}

double slope(const std::vector<double>& overheads) {
  return (simulated(overheads, 64) - simulated(overheads, 16)) / 48;
}

TEST(IdlePlan, IsAPlanForAnyNumberOfRanks) {
  const Cluster cluster = testing::cluster_of("kind k fp32=1e12\nhost a k 5\n");
  for (const int ranks : {1, 2, 3, 4, 5}) {
    const Plan plan = idle_plan(cluster, ranks, 4);
    const Status status = verify_plan(plan);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(plan.rank_count(), ranks);
  }
}

// The formulas by which `measure_overhead` takes an overhead from the growth of a step: with that
// overhead the simulator grows as much.
TEST(IdlePlan, GrowsInTheSimulatorAsTheMeasurementAssumes) {
  EXPECT_NEAR(slope({kMuch, kMuch}), kMuch + kLatency, 1e-9);
  EXPECT_NEAR(slope({kLittle, kMuch}), kMuch + kLatency, 1e-9);
  EXPECT_NEAR(slope({kMuch, kLittle}), kMuch + kLatency, 1e-9);
  // Pairs do not wait for one another: the slowest one counts.
  EXPECT_NEAR(slope({kLittle, kLittle, kLittle, kMuch}), kMuch + kLatency, 1e-9);
}

}  // namespace
}  // namespace agpcs
