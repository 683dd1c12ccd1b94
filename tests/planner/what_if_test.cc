// SPDX-License-Identifier: Apache-2.0
#include "planner/what_if.h"

#include "codegen/lower.h"
#include "cost_model/fit/calibrate.h"
#include "planner/problem/strategy_of_plan.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::chain;
using testing::cluster_of;
using testing::fast_and_slow;
using testing::lowered;
using testing::problem_of;
using testing::strategy_of;

std::unique_ptr<const Problem> problem_with(Graph graph, Cluster cluster, std::int64_t batch,
                                            double momentum) {
  Training training = testing::training_of(graph, batch);
  training.optimizer.momentum = momentum;
  return *Problem::make(std::move(graph), std::move(cluster), training);
}

/// A strategy on a problem, with its plan and what it takes.
struct Tried {
  std::unique_ptr<const Problem> problem;
  Strategy strategy;
  Plan plan;
  Estimate estimate;

  Tried(Graph graph, Cluster cluster, std::int64_t batch, const std::string& text,
        double momentum = 0)
      : problem(problem_with(std::move(graph), std::move(cluster), batch, momentum)),
        strategy(strategy_of(text, problem->graph, problem->cluster)),
        plan(lowered(*problem, strategy)),
        estimate(*simulate(plan, problem->graph, problem->cluster, problem->costs)) {}

  WhatIfs in_plan() const { return *what_if_plan(*problem, strategy, estimate.step_seconds); }
  WhatIfs in_hardware() const { return *what_if_hardware(*problem, plan, estimate); }
};

/// Ends the test when nothing of the family was tried.
WhatIf of_family(const WhatIfs& found, const std::string& family) {
  for (const WhatIf& change : found.changes) {
    if (change.family == family) return change;
  }
  AGPCS_CHECK(false, "no change of '{}' was tried", family);
}

bool has_family(const WhatIfs& found, const std::string& family) {
  return std::any_of(found.changes.begin(), found.changes.end(),
                     [&](const WhatIf& w) { return w.family == family; });
}

TEST(StrategyOfPlan, LowersToTheSamePlan) {
  const auto problem = problem_of(chain(4), fast_and_slow(), 16);
  for (const std::string text :
       {"stage a/0=6 a/1=6 b/0=2 b/1=2 : *\nbucket 0 ring w3\nbucket 0 tree w2\nbucket 0 "
        "hierarchical w1 w0\n",
        "micro-batches 4 gpipe\nstage a/0=4 : h0..a1\nstage b/0=3 b/1=1 recompute : *\n",
        "micro-batches 2\nstage b/0=8 : h0\nstage a/0=4 a/1=4 : a0..a2\nstage b/1=8 : *\n",
        "micro-batches 8\nstage b/0=2 in-flight=5 : h0\nstage a/0=2 in-flight=3 : a0..a2\n"
        "stage b/1=2 : *\n",
        "micro-batches 4\nstage a/0=4 in-flight=1 : h0..a1\nstage b/0=4 : *\n"}) {
    const Plan plan = lowered(*problem, strategy_of(text, problem->graph, problem->cluster));
    const Result<Strategy> back = strategy_of_plan(plan, problem->graph, problem->cluster);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(print_plan(lowered(*problem, *back)), print_plan(plan)) << text;
    const Strategy before = strategy_of(text, problem->graph, problem->cluster);
    EXPECT_EQ(in_flight_by_stage(*back), in_flight_by_stage(before)) << text;
    for (std::size_t s = 0; s < before.stages.size(); ++s) {
      EXPECT_EQ(back->stages[s].in_flight, before.stages[s].in_flight) << text;
    }
  }
}

TEST(StrategyOfPlan, ReadsWhatIsInFlightWhateverTheScheduleIsCalled) {
  const auto problem = problem_of(chain(4), fast_and_slow(), 16);
  Plan plan = lowered(*problem, strategy_of("micro-batches 4\nstage a/0=4 in-flight=3 : h0..a1\n"
                                            "stage b/0=4 : *\n",
                                            problem->graph, problem->cluster));
  plan.schedule = Schedule::kGPipe;
  const Result<Strategy> back = strategy_of_plan(plan, problem->graph, problem->cluster);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->schedule, Schedule::k1F1B);
  EXPECT_EQ(in_flight_by_stage(*back), (std::vector<std::int64_t>{3, 1}));
}

TEST(WhatIfPlan, MovesSamplesAwayFromTheSlowDevices) {
  const Tried equal(chain(4, 1024), fast_and_slow("16e9", "1e12"), 4096,
                    "stage a/0=1024 a/1=1024 b/0=1024 b/1=1024 : *\n");
  const WhatIf best = of_family(equal.in_plan(), "shares");
  EXPECT_EQ(best.change, "shares in proportion to the devices' speed");
  // The slow ones have a third of the speed: 512 samples take them as long as 1536 the others.
  Tried fair(chain(4, 1024), fast_and_slow("16e9", "1e12"), 4096,
             "stage a/0=1536 a/1=1536 b/0=512 b/1=512 : *\n");
  EXPECT_NEAR(best.step_seconds, fair.estimate.step_seconds, 0.01 * fair.estimate.step_seconds);
  EXPECT_NEAR(best.gain, 1 - best.step_seconds / equal.estimate.step_seconds, 1e-12);
}

TEST(WhatIfPlan, MoreMicroBatchesShortenAPipelinesBubbles) {
  const Tried two(chain(4, 1024), fast_and_slow("16e9", "1e12"), 4096,
                  "micro-batches 2\nstage a/0=2048 : h0..a1\nstage a/1=2048 : *\n");
  const WhatIf best = two.in_plan().changes.front();
  EXPECT_EQ(best.family, "micro-batches");
  EXPECT_EQ(best.change, "8 micro-batches instead of 2");
  EXPECT_GT(best.gain, 0.15);  // from 3/2 to 9/8 of the time without bubbles, less what smaller
                               // passes lose
}

TEST(WhatIfPlan, MoreMicroBatchesInFlightHideSlowLinks) {
  const Tried textbook(chain(2, 1024),
                       cluster_of("kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
                                  "host a gpu 1 nic=25e9\nhost b gpu 1 nic=25e9\n"),
                       16 * 1024, "micro-batches 16\nstage a/0=1024 : h0 a0\nstage b/0=1024 : *\n");
  const WhatIf best = of_family(textbook.in_plan(), "in flight");
  EXPECT_EQ(best.change, "s0: 3 micro-batches in flight instead of 2");
  EXPECT_GT(best.gain, 0.1);
}

TEST(WhatIfPlan, LeavesOutWhatDoesNotFit) {
  const Tried kept(chain(4, 1024), fast_and_slow("100e6"), 8192,
                   "micro-batches 8\nstage a/0=512 a/1=512 : *\n");
  const WhatIfs found = kept.in_plan();
  EXPECT_GT(found.too_large, 0);
  EXPECT_GT(found.tried, 0);
}

TEST(WhatIfPlan, DividesTheOptimizersStateOfAStageWithSeveralDevices) {
  // So few samples that gradients, which would travel eight times, are not divided.
  const auto found = [](const std::string& stage, double momentum) {
    return Tried(chain(4, 1024), fast_and_slow(), 32, "micro-batches 8\n" + stage + " : *\n",
                 momentum)
        .in_plan();
  };
  EXPECT_EQ(of_family(found("stage a/0=2 a/1=2", 0.9), "state").change,
            "s0 divides the optimizer's state");
  EXPECT_EQ(of_family(found("stage a/0=2 a/1=2 state", 0.9), "state").change,
            "s0 has all of, not divides, the optimizer's state");
  EXPECT_FALSE(has_family(found("stage a/0=4", 0.9), "state"));
  EXPECT_FALSE(has_family(found("stage a/0=2 a/1=2", 0), "state"));  // there is none
}

TEST(WhatIfPlan, DividesGradientsWhereAStageWithTheirSumsIsStillTooLarge) {
  const auto found = [](const std::string& stage, const std::string& memory) {
    return Tried(chain(4, 1024), fast_and_slow(memory), 4096,
                 "micro-batches 4\n" + stage + " : *\n", 0.9)
        .in_plan();
  };
  // Parameters, gradients and momentum are 17 MB each.
  const WhatIfs tight = found("stage a/0=512 a/1=512 state", "62e6");
  EXPECT_EQ(of_family(tight, "state").change, "s0 divides gradients and parameters, too");
  EXPECT_GT(tight.too_large, 0);  // with whole state, among others
  const WhatIf less = of_family(found("stage a/0=512 a/1=512 state=gradients", "16e9"), "state");
  EXPECT_THAT(less.change, ::testing::EndsWith("gradients"));
  EXPECT_GT(less.gain, 0);
}

TEST(WhatIfPlan, AChangeOfBucketsIsThatOfTheOptionItNames) {
  const Tried one(chain(4, 1024), fast_and_slow(), 4096,
                  "stage a/0=1024 a/1=1024 b/0=1024 b/1=1024 : *\n");
  const WhatIf best = of_family(one.in_plan(), "buckets");
  EXPECT_EQ(best.change, "buckets as the planner chooses: 3 instead of 1 (no --bucket-bytes)");
  EXPECT_GT(best.gain, 0);  // reduced while others are still computed
}

TEST(WhatIfHardware, AFasterKindComputesFaster) {
  const Tried alone(chain(4, 1024), fast_and_slow(), 4096, "stage a/0=4096 : *\n");
  const WhatIfs found = alone.in_hardware();
  EXPECT_EQ(found.changes.front().change, "the fast 10% faster");
  EXPECT_NEAR(found.changes.front().gain, 1 - 1 / 1.1, 1e-9);
  EXPECT_FALSE(has_family(found, "kind slow"));  // idle
  EXPECT_FALSE(has_family(found, "NIC of a"));
}

TEST(WhatIfHardware, AFasterKindComputesFasterWhereItWasMeasured) {
  const Graph graph = chain(4, 1024);
  const auto slowly = [](OpClass, double flops, double bytes) { return 1e-9 * (flops + bytes); };
  Cluster cluster = fast_and_slow();
  Profile lab;
  lab.file = "lab.yaml";
  lab.devices = {testing::measured_device("fast", graph, {1, 4096}, slowly, slowly)};
  cluster.profiles = {lab};
  cluster.kinds[0].profile = {0, "fast"};
  auto calibrated = calibrate(cluster);
  ASSERT_TRUE(calibrated.ok()) << calibrated.status().message();
  const Tried alone(graph, std::move(calibrated->cluster), 4096, "stage a/0=4096 : *\n");
  const WhatIfs found = alone.in_hardware();
  EXPECT_EQ(found.changes.front().change, "the fast 10% faster");
  EXPECT_NEAR(found.changes.front().gain, 1 - 1 / 1.1, 1e-3);
}

TEST(WhatIfHardware, ATwiceAsFastNicHalvesWhatItCarries) {
  // Two hosts of one device behind slow NICs: the step is nearly all all-reduce.
  const Cluster cluster = cluster_of(
      "kind gpu bandwidth=900e9 fp32=15e12\nhost a gpu 1 bandwidth=1e12 nic=1e7 nic-latency=0\n"
      "host b gpu 1 bandwidth=1e12 nic=1e7 nic-latency=0\n");
  const Tried slow(chain(4, 1024), cluster, 8, "stage a/0=4 b/0=4 : *\n");
  const WhatIfs found = slow.in_hardware();
  EXPECT_EQ(found.changes.front().change, "both NICs twice as fast");
  EXPECT_NEAR(found.changes.front().gain, 0.5, 0.01);
  // One alone changes nothing: a ring goes at the pace of its slowest hop.
  EXPECT_NEAR(of_family(found, "NIC of a").gain, 0, 1e-9);
}

}  // namespace
}  // namespace agpcs
