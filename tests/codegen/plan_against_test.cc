// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/plan_against.h"

#include "tests/codegen/test_models.h"

#include <agpcs/digest.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

Cluster tight_cluster(const std::string& memory) {
  return cluster_of("kind gpu memory=" + memory + " bandwidth=900e9 fp32=15e12\nhost a gpu 2\n");
}

TEST(VerifyPlanAgainst, SaysWhichDeviceLacksHowManyBytesAndWhatWouldHelp) {
  const Cluster cluster = tight_cluster("3000");
  const Plan plan = plan_of(two_layers(), cluster, "micro-batches 2\nstage a/0=8 : *\n", 16);
  const Status status = verify_plan_against(plan, two_layers(), cluster);
  EXPECT_EQ(status.code(), StatusCode::kInfeasible);
  EXPECT_EQ(status.message(),
            "a/0 (rank 0, stage s0) lacks 584B: it has 3.00kB and needs 3.58kB\n"
            "  parameters 768B, gradients 768B, activations 1.02kB, workspace 1.02kB\n"
            "  hint: more micro-batches (now 2), a smaller batch (now 16), recomputation, more "
            "devices or more stages");
}

TEST(VerifyPlanAgainst, SaysWhenParametersAloneAreTooMuch) {
  const Cluster cluster = tight_cluster("2900");
  Plan plan = plan_of(two_layers(), cluster, "micro-batches 2\nstage a/0=8 : *\n", 16);
  plan.training.optimizer.kind = OptimizerKind::kAdam;
  EXPECT_EQ(
      verify_plan_against(plan, two_layers(), cluster).message(),
      "a/0 (rank 0, stage s0) lacks 2.22kB: it has 2.90kB and needs 5.12kB\n"
      "  parameters 768B, gradients 768B, optimizer 1.54kB, activations 1.02kB, workspace "
      "1.02kB\n"
      "  hint: parameters, gradients and optimizer state alone do not fit: more stages, or an "
      "optimizer with less state");
}

TEST(VerifyPlanAgainst, AsksForMemoryWhereOneOperatorAloneDoesNotFit) {
  // Each device lacks memory for the first layer by itself: no number of stages or devices helps.
  const Cluster cluster = tight_cluster("1000");
  Plan plan = plan_of(two_layers(), cluster, "micro-batches 2\nstage a/0=8 : *\n", 16);
  EXPECT_EQ(verify_plan_against(plan, two_layers(), cluster).message(),
            "a/0 (rank 0, stage s0) lacks 2.58kB: it has 1.00kB and needs 3.58kB\n"
            "  parameters 768B, gradients 768B, activations 1.02kB, workspace 1.02kB\n"
            "  hint: operator 'h' alone needs 1.54kB with one sample: a device with more memory");
  plan.training.optimizer.kind = OptimizerKind::kAdam;
  EXPECT_THAT(verify_plan_against(plan, two_layers(), cluster).message(),
              ::testing::HasSubstr(": a device with more memory, or an optimizer with less state"));
}

class AnotherProblem : public ::testing::Test {
 protected:
  Plan plan_ = plan_of_strategy(strategies()[2].second);  // two stages
  std::string message() const {
    return verify_plan_against(plan_, skip_model(), two_hosts()).message();
  }
};

TEST_F(AnotherProblem, AnotherModelIsNamedWithBothDigests) {
  const Status status = verify_plan_against(plan_, two_layers(), two_hosts());
  EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
  EXPECT_EQ(status.message(),
            "plan: error: the plan is for model 'test' (" + digest_of(print_graph(skip_model())) +
                "), this model is 'test' (" + digest_of(print_graph(two_layers())) +
                ")\n  hint: give the model that the plan was made for, with the same --dim, or "
                "compile again");
}

TEST_F(AnotherProblem, AnotherClusterIsNamedWithBothDigests) {
  const Status status = verify_plan_against(plan_, skip_model(), tight_cluster("1e9"));
  EXPECT_EQ(status.message(),
            "plan: error: the plan is for cluster 'test' (" +
                digest_of(print_cluster(two_hosts())) + "), this cluster is 'test' (" +
                digest_of(print_cluster(tight_cluster("1e9"))) +
                ")\n  hint: give the cluster that the plan was made for, or compile again");
}

TEST_F(AnotherProblem, ADeviceThatIsNotThereIsNamed) {
  plan_.expect.clear();  // which names devices, too
  plan_.stages[1].devices[0] = "c/0";
  EXPECT_EQ(message(), "plan: error: rank 1: cluster 'test' has no 'c/0'");
  plan_.stages[0].devices[0] = "b/1";
  plan_.stages[1].devices[0] = "a/0";
  EXPECT_EQ(message(),
            "plan: error: rank 1 is on 'a/0', which the cluster lists before 'b/1' of rank 0");
}

TEST_F(AnotherProblem, OperatorsAreThoseOfTheModel) {
  plan_.stages[0].operators[0].last = "h1";
  EXPECT_EQ(message(),
            "plan: error: stage s0: the model has 3 operators from 'h0' to 'h1', the plan has 4");
  plan_.stages[0].operators[0].count = 3;
  EXPECT_EQ(message(), "plan: error: operator 'a1' is in no stage");
  plan_.stages[1].operators[0].first = "h1";
  plan_.stages[1].operators[0].count += 2;
  EXPECT_EQ(message(), "plan: error: operator 'h1' is in stage s0 and in stage s1");
  plan_.stages[1].operators[0].first = "nothing";
  EXPECT_EQ(message(), "plan: error: stage s1: the model has no operator 'nothing'");
}

TEST_F(AnotherProblem, CutsAreThoseOfTheModel) {
  plan_.cuts[0].tensors[0].dims = {17};
  EXPECT_EQ(
      message(),
      "plan: error: cut c0 is s0 to s1: 'a0' fp32 samplesx17 gradient=yes 'a1' fp32 samplesx16 "
      "gradient=yes\n"
      "  the model needs s0 to s1: 'a0' fp32 samplesx16 gradient=yes 'a1' fp32 samplesx16 "
      "gradient=yes\n"
      "  hint: compile again");
}

TEST(VerifyPlanAgainst, ASharedBucketIsOfTheStagesThatReadItsParameters) {
  const Graph graph = tied_model();
  const Cluster cluster = two_hosts();
  Plan plan = plan_of(graph, cluster, kTiedStages, 16);
  EXPECT_EQ(verify_plan_against(plan, graph, cluster).message(), "");
  std::swap(plan.buckets[0].members, plan.buckets[1].members);
  EXPECT_EQ(verify_plan_against(plan, graph, cluster).message(),
            "plan: error: bucket b0: 'table' has 128 elements of fp32 in s0, the model has 128 of "
            "fp32 in s0 and s1");
}

TEST_F(AnotherProblem, BucketsHoldEveryGradientOfTheirStageWhole) {
  plan_.buckets[0].members[0].elements += 1;
  EXPECT_EQ(
      message(),
      "plan: error: bucket b0: 'w1' has 257 elements of fp32 in s0, the model has 256 of fp32 "
      "in s0");
  plan_.buckets[0].members.erase(plan_.buckets[0].members.begin());
  EXPECT_EQ(message(), "plan: error: the gradient of 'w1' is in no bucket");
  plan_.buckets[0].members[0].parameter = "w9";
  EXPECT_EQ(message(), "plan: error: bucket b0: the model trains no parameter 'w9'");
}

}  // namespace
}  // namespace agpcs
