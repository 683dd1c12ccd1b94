// SPDX-License-Identifier: Apache-2.0
// The memory of plans that have state or activations in the memory of hosts.
#include "codegen/lower.h"
#include "ir/base/check.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/plan_against.h"
#include "tests/codegen/test_models.h"

#include <agpcs/digest.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

/// A product of 4,096 x 1,024 weights, on two devices of hosts with 64 MB each.
class StateInHosts : public ::testing::Test {
 protected:
  StateInHosts()
      : graph_(graph_of("input x [n,4096]\nparameter w [4096,1024]\ny = MatMul(x, w) [n,1024]\n"
                        "l = ReduceSum(y) []\noutputs y\nloss l\n")),
        cluster_(cluster_of("kind k memory=16e9 bandwidth=900e9 fp32=15e12\nhost a k 2\n")),
        training_(training_of(graph_, 16)) {
    cluster_.kinds[0].host_link = {"pcie", 12e9, 5e-6};
    cluster_.hosts[0].memory_bytes = 64'000'000;
    training_.optimizer.kind = OptimizerKind::kAdam;
  }

  Plan plan(const std::string& level) const {
    Strategy strategy =
        strategy_of("micro-batches 1\nstage a/0=8 a/1=8" + level + " : *\n", graph_, cluster_);
    strategy.stages[0].state_in_host = true;
    const Result<Plan> plan = lower(graph_, cluster_, training_, strategy, MadeBy());
    AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
    return *plan;
  }

  Graph graph_;
  Cluster cluster_;
  Training training_;
};

TEST_F(StateInHosts, LeavesTheWindowOnDevices) {
  constexpr std::int64_t kElements = 4096 * 1024, kWindow = 3 * 1024 * 1024 * 8;
  const std::vector<MemoryUse> whole = *peak_memory(plan(""), graph_);
  for (const MemoryUse& use : whole) {
    EXPECT_EQ(use.host, kElements * 8);
    EXPECT_EQ(use.optimizer, kWindow);
    EXPECT_EQ(use.gradients, kElements * 4);
  }
  // What a rank owns of it is less than the window.
  const Plan divided = plan(" state=optimizer");
  EXPECT_THAT(divided.buckets[0].parts, ::testing::ElementsAre(kElements / 2, kElements / 2));
  const std::vector<MemoryUse> parts = *peak_memory(divided, graph_);
  for (const MemoryUse& use : parts) {
    EXPECT_EQ(use.host, kElements / 2 * 8);
    EXPECT_EQ(use.optimizer, kElements / 2 * 8);
  }
  EXPECT_EQ(verify_plan_against(divided, graph_, cluster_).message(), "");
}

TEST_F(StateInHosts, NeedsTheMemoryOfTheHost) {
  EXPECT_EQ(
      verify_plan_against(plan(""), graph_, cluster_).message(),
      "host a lacks 3.11MB: it has 64.0MB for the optimizer's state of ranks 0,1, which needs "
      "67.1MB\n"
      "  hint: 'memory' of the host in cluster.yaml says how much there is");
}

TEST_F(StateInHosts, NeedsALink) {
  Plan made = plan(" state=optimizer");
  cluster_.kinds[0].host_link = {};
  made.cluster_digest = digest_of(print_cluster(cluster_));
  EXPECT_EQ(verify_plan_against(made, graph_, cluster_).message(),
            "plan: error: rank 0 keeps the optimizer's state in the memory of its host, but device "
            "'a/0' has no host_link\n"
            "  hint: give its kind 'k' a host_link in cluster.yaml, or leave out state-in=host");
}

/// Eight layers of 256 x 256 on a device of a host with 64 MB.
class ActivationsInHosts : public ::testing::Test {
 protected:
  ActivationsInHosts()
      : cluster_(cluster_of("kind k memory=16e9 bandwidth=900e9 fp32=15e12\nhost a k 1\n")) {
    std::string text = "input x [n,256]\n";
    std::string last = "x";
    for (int i = 0; i < 8; ++i) {
      const std::string number = std::to_string(i);
      text += "parameter w" + number + " [256,256]\nm" + number + " = MatMul(" + last + ", w" +
              number + ") [n,256]\nh" + number + " = Gelu(m" + number + ") [n,256]\n";
      last = "h" + number;
    }
    graph_ = graph_of(text + "l = ReduceSum(h7) []\noutputs h7\nloss l\n");
    cluster_.kinds[0].host_link = {"pcie", 12e9, 5e-6};
    cluster_.hosts[0].memory_bytes = 64'000'000;
  }

  Plan plan(const Recomputation& recompute, std::int64_t micro_batches) const {
    Strategy strategy = strategy_of(
        "micro-batches " + std::to_string(micro_batches) + " gpipe\nstage a/0=1024 : *\n", graph_,
        cluster_);
    strategy.stages[0].recompute = recompute;
    const Training training = training_of(graph_, 1024 * micro_batches);
    const Result<Plan> plan = lower(graph_, cluster_, training, strategy, MadeBy());
    AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
    return *plan;
  }

  Graph graph_;
  Cluster cluster_;
};

TEST_F(ActivationsInHosts, AreThereForAllMicroBatchesInFlight) {
  constexpr std::int64_t kActivation = 1024 * 256 * 4;
  const MemoryUse here = peak_memory(plan({}, 2), graph_)->front();
  const MemoryUse moved = peak_memory(plan({8, 0, false, true}, 2), graph_)->front();
  EXPECT_EQ(here.host, 0);
  EXPECT_GT(moved.host, 2 * 14 * kActivation);
  EXPECT_EQ(moved.host % (2 * kActivation), 0);
  EXPECT_LT(moved.total(), here.total() - 22 * kActivation);
  const MemoryUse half = peak_memory(plan({8, 4, false, true}, 2), graph_)->front();
  EXPECT_LT(half.host, moved.host * 6 / 10);
  EXPECT_GT(half.total(), moved.total());
  // What is computed again keeps what its segments read.
  const MemoryUse again = peak_memory(plan({8, 0, true, true}, 2), graph_)->front();
  EXPECT_LT(again.host, moved.host * 6 / 10);
  EXPECT_LT(again.total(), peak_memory(plan({8, 0}, 2), graph_)->front().total());
}

TEST_F(ActivationsInHosts, NeedTheMemoryOfTheHostAndALink) {
  EXPECT_EQ(verify_plan_against(plan({8, 0, false, true}, 2), graph_, cluster_).message(), "");
  const std::string message =
      verify_plan_against(plan({8, 0, false, true}, 8), graph_, cluster_).message();
  EXPECT_NE(message.find("it has 64.0MB for activations of ranks 0, which needs"),
            std::string::npos)
      << message;
  Plan made = plan({8, 0, false, true}, 2);
  cluster_.kinds[0].host_link = {};
  made.cluster_digest = digest_of(print_cluster(cluster_));
  EXPECT_EQ(verify_plan_against(made, graph_, cluster_).message(),
            "plan: error: rank 0 keeps activations in the memory of its host, but device 'a/0' has "
            "no host_link\n"
            "  hint: give its kind 'k' a host_link in cluster.yaml, or leave out "
            "activations-in=host");
}

}  // namespace
}  // namespace agpcs
