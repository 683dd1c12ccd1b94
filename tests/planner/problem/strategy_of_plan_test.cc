// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/strategy_of_plan.h"

#include "codegen/lower.h"
#include "cost_model/step/simulator.h"
#include "planner/evaluate/evaluator.h"
#include "planner/refine/moves/moves.h"
#include "tests/planner/problem/problems.h"
#include "tests/support/shard_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::chain;
using testing::fast_and_slow;
using testing::graph_of;
using testing::lowered;
using testing::strategy_of;

/// A plan whose devices divide Adam's state as it says, not as its stages would.
struct Divided {
  std::unique_ptr<const Problem> problem;
  Strategy strategy;
  Plan plan;

  explicit Divided(const std::string& text) {
    Graph graph = chain(4);
    Training training = testing::training_of(graph, 16);
    training.optimizer.kind = OptimizerKind::kAdam;
    problem = *Problem::make(std::move(graph), fast_and_slow(), training);
    strategy = strategy_of(text, problem->graph, problem->cluster);
    plan = lowered(*problem, strategy);
    for (PlanBucket& bucket : plan.buckets) {
      if (!bucket.is_sharded()) continue;
      std::reverse(bucket.parts.begin(), bucket.parts.end());
      bucket.parts.front() -= bucket.parts.front() / 2;
      bucket.parts.back() += bucket.elements() - sum_of(bucket.parts);
    }
    EXPECT_TRUE(verify_plan(plan).ok());
  }
  static std::int64_t sum_of(const std::vector<std::int64_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  }
};

constexpr char kDivided[] =
    "micro-batches 2\nstage a/0=4 a/1=4 state=optimizer : h0..a1\nstage b/0=5 b/1=3 : *\n";

TEST(StrategyOfPlan, KeepsThePartsThatThePlanStates) {
  const Divided by_hand(kDivided);
  const Problem& problem = *by_hand.problem;
  const Result<Strategy> back = strategy_of_plan(by_hand.plan, problem.graph, problem.cluster);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(verify_strategy(*back, problem.graph, problem.cluster, 16).ok());
  EXPECT_EQ(print_plan(lowered(problem, *back)), print_plan(by_hand.plan));
  const Score score = Evaluator(problem).evaluate(*back);
  const Estimate estimate = *simulate(by_hand.plan, problem.graph, problem.cluster, problem.costs);
  EXPECT_EQ(score.step_seconds, estimate.step_seconds);
}

TEST(StrategyOfPlan, HasNoPartsWhereTheStagesWouldDivideTheirStateSo) {
  const Divided by_hand(kDivided);
  const Problem& problem = *by_hand.problem;
  const Plan plan = lowered(problem, by_hand.strategy);
  EXPECT_TRUE(plan.buckets.front().is_sharded());
  EXPECT_EQ(*strategy_of_plan(plan, problem.graph, problem.cluster), by_hand.strategy);
}

TEST(StrategyOfPlan, LosesPartsWithTheDevicesThatOwnThem) {
  const Divided by_hand(kDivided);
  const Problem& problem = *by_hand.problem;
  const Strategy back = *strategy_of_plan(by_hand.plan, problem.graph, problem.cluster);
  StrategyMoves moves(problem);
  const auto after = [&](const StrategyMove& move) {
    return has_own_parts(*moves.apply(back, back, move), 0);
  };
  EXPECT_TRUE(after(SetMemory{0, kWholeStage}));
  EXPECT_TRUE(after(SetMicroBatches{4, true}));
  EXPECT_FALSE(after(SetMemory{0, std::nullopt, StateLevel::kWhole}));
  const DeviceId first = back.stages[0].devices[0], second = back.stages[0].devices[1];
  EXPECT_FALSE(after(MoveSamples{0, first, second, 4}));  // the first has no sample any more
}

constexpr char kTied[] =
    "input x [n,8]\nparameter shared [8,8]\nparameter v [8,8]\n"
    "h = MatMul(x, shared) [n,8]\ng = MatMul(h, v) [n,8]\ny = MatMul(g, shared) [n,8]\n"
    "l = ReduceMean(y) []\noutputs y\nloss l\n";

TEST(StrategyOfPlan, KeepsThePartsOfABucketThatStagesShare) {
  const Graph graph = graph_of(kTied);
  Training training = testing::training_of(graph, 8);
  training.optimizer.kind = OptimizerKind::kAdam;
  const auto problem = *Problem::make(graph, fast_and_slow(), training);
  const Strategy strategy =
      strategy_of("stage a/0=4 a/1=4 : h\nstage b/0=8 : *\n", problem->graph, problem->cluster);
  const Plan plan = testing::sharded(lowered(*problem, strategy), {3, 1});
  const Result<Strategy> back = strategy_of_plan(plan, problem->graph, problem->cluster);
  ASSERT_TRUE(back.ok()) << back.status().message();
  Plan again = lowered(*problem, *back);
  again.expect = plan.expect;
  EXPECT_EQ(print_plan(again), print_plan(plan));
  EXPECT_EQ(Evaluator(*problem).evaluate(*back).step_seconds,
            simulate(plan, problem->graph, problem->cluster, problem->costs)->step_seconds);
}

}  // namespace
}  // namespace agpcs
