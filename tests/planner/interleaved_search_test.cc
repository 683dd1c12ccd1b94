// SPDX-License-Identifier: Apache-2.0
// The planner and interleaved stages: it finds them where they are faster, and only there.
#include "planner/interleaved_search.h"

#include "ir/plan/rounds/rank_stages.h"
#include "ir/strategy/interleaved.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluator.h"
#include "planner/plan_problem.h"
#include "planner/problem/strategy_of_plan.h"
#include "planner/refine/dqn.h"
#include "planner/replan.h"
#include "planner/seed/layout/layout.h"
#include "planner/what_if.h"
#include "planner/what_if_operator.h"
#include "tests/bench/planning/small_cases.h"
#include "tests/planner/evaluate/by_simulation.h"
#include "tests/planner/problem/problems.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace agpcs::testing {
namespace {

/// Layers of 4 MB each, on four devices that hold a few of them, with fast links between them: only
/// pipelines fit, and few micro-batches fill them.
std::unique_ptr<const Problem> pipeline_problem(std::int64_t batch = 8,
                                                const std::string& link = "bandwidth=1e12") {
  return problem_of(chain(48, 1024),
                    cluster_of("kind gpu memory=170e6 bandwidth=900e9 fp32=1e12 launch=0\nhost a "
                               "gpu 4 " +
                               link + " latency=1e-7\n"),
                    batch);
}

PlanOptions options_with(bool interleave, const Refiner* refiner) {
  PlanOptions options;
  options.interleave = interleave;
  options.refiner = refiner;
  options.budget = 60;
  options.bound = false;
  return options;
}

Planned planned(const Problem& problem, bool interleave) {
  const std::unique_ptr<Refiner> refiner = *make_refiner("greedy");
  Result<Planned> made = plan_problem(problem, options_with(interleave, refiner.get()));
  AGPCS_CHECK(made.ok(), "{}", made.status().message());
  return *std::move(made);
}

TEST(InterleavedSearch, FindsWhatFillsAPipelineSooner) {
  const auto problem = pipeline_problem();
  const Planned without = planned(*problem, false), with = planned(*problem, true);
  EXPECT_NE(without.best.strategy.schedule, Schedule::kInterleaved);
  EXPECT_EQ(with.best.strategy.schedule, Schedule::kInterleaved);
  EXPECT_EQ(with.best.plan.made_by.seeder, "interleaved");
  EXPECT_LT(with.best.estimate.step_seconds, 0.97 * without.best.estimate.step_seconds);
  EXPECT_EQ(verify_strategy(with.best.strategy, problem->graph, problem->cluster, 8).message(), "");
  EXPECT_EQ(verify_plan(with.best.plan).message(), "");
  EXPECT_EQ(by_simulation(*problem, with.best.strategy).step_seconds,
            with.best.estimate.step_seconds);
}

/// Data parallelism is best here, and where messages are slow, more of them only make steps longer:
/// the plan is then the very plan of today.
TEST(InterleavedSearch, LeavesPlansAsTheyAreWhereItFindsNothing) {
  const auto slow_links = pipeline_problem(8, "bandwidth=2e8");
  const auto roomy = problem_of(chain(6, 256), fast_and_slow(), 48);
  for (const Problem* const problem : {slow_links.get(), roomy.get()}) {
    const Planned without = planned(*problem, false), with = planned(*problem, true);
    EXPECT_NE(with.best.strategy.schedule, Schedule::kInterleaved);
    EXPECT_EQ(print_plan(with.best.plan), print_plan(without.best.plan));
  }
}

TEST(InterleavedSearch, NoCutIsBetterOneBlockFurther) {
  const auto problem = bench::tight_problem(1058);
  const std::unique_ptr<const Refiner> refiner = *make_refiner("dqn");
  PlanOptions options = options_with(true, refiner.get());
  options.budget = 0;
  const Result<Planned> planned = plan_problem(*problem, options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const Strategy& best = planned->best.strategy;
  ASSERT_EQ(best.schedule, Schedule::kInterleaved);
  Evaluator evaluator(*problem);
  int shifts = 0;
  for (const Block& block : problem->blocks.blocks) {
    for (const int by : {-1, 1}) {
      Strategy other = best;
      other.buckets.clear();
      for (const OpId op : block.ops) other.stage_of[static_cast<std::size_t>(op)] += by;
      const Status valid =
          verify_strategy(other, problem->graph, problem->cluster, problem->training.batch);
      if (!valid.ok()) continue;
      const Score score = evaluator.evaluate(other);
      if (!score.fits()) continue;
      ++shifts;
      EXPECT_GE(score.step_seconds, 0.999999 * planned->best.estimate.step_seconds);
    }
  }
  EXPECT_GT(shifts, 0);
}

TEST(InterleavedSearch, RecomputesWhereMemoryLacks) {
  const auto problem = problem_of(
      chain(48, 1024),
      cluster_of("kind gpu memory=192e6 bandwidth=900e9 fp32=1e12 launch=0\nhost a gpu 4 "
                 "bandwidth=1e12 latency=1e-7\n"),
      4096);
  const auto layout = parse_layout("a/0|a/1|a/2|a/3|schedule=interleaved,each=3", problem->cluster);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  LayoutStrategies strategies(*problem);
  const auto made = strategies.of(*layout, 8);
  ASSERT_TRUE(made.ok() && *made) << made.status().message();
  Evaluator evaluator(*problem);
  EXPECT_LE(evaluator.lacking(**made), 0);
  Strategy kept = **made;
  int recomputing = 0;
  for (StageSpec& spec : kept.stages) {
    recomputing += spec.recompute ? 1 : 0;
    spec.recompute = {};
  }
  EXPECT_GT(recomputing, 0);
  EXPECT_GT(evaluator.lacking(kept), 0);
}

TEST(InterleavedLayout, StagesGoRoundOverTheDevices) {
  const auto problem = pipeline_problem();
  const auto layout = parse_layout("a/0,a/1|a/2,a/3|schedule=interleaved,each=3", problem->cluster);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const auto strategies = make_layout_seeder(*layout)->seed(*problem, Rng(0));
  ASSERT_TRUE(strategies.ok()) << strategies.status().message();
  ASSERT_FALSE(strategies->empty());
  for (const Strategy& strategy : *strategies) {
    EXPECT_EQ(strategy.schedule, Schedule::kInterleaved);
    ASSERT_EQ(strategy.stages.size(), 6U);
    EXPECT_EQ(round_size(strategy), 2);
    EXPECT_EQ(strategy.stages[3].devices, (std::vector<DeviceId>{2, 3}));
    EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 8).message(), "");
  }
  EXPECT_EQ(parse_layout("a/0|a/1|schedule=interleaved", problem->cluster)->each, 2);
}

TEST(InterleavedLayout, IsRefusedWithTheReason) {
  const auto refusal = [](const char* text) {
    const auto layout = parse_layout(text, pipeline_problem()->cluster);
    EXPECT_EQ(layout.status().code(), StatusCode::kUsage) << text;
    return layout.status().message();
  };
  EXPECT_EQ(refusal("a/0|a/1|schedule=interleaved,each=1"),
            "layout: 'each=1' is not a number of stages from 2 to 64");
  EXPECT_EQ(refusal("a/0|a/1|schedule=interleaved,rounds=2"),
            "layout: 'rounds=2' behind a schedule, where each= may stand");
  EXPECT_EQ(refusal("a/0|a/1|schedule=gpipe,each=2"),
            "layout: schedule=gpipe has one stage on each device, so each= has no effect\n"
            "  hint: schedule=interleaved");
  EXPECT_EQ(refusal("a/0,in-flight=3|a/1|schedule=interleaved"),
            "layout: schedule=interleaved says how many micro-batches are in flight, so in-flight= "
            "has no effect");
  EXPECT_EQ(refusal("a/0+a/1|a/2+a/3|schedule=interleaved"),
            "layout: a stage has teams, and schedule=interleaved gives devices several stages: the "
            "two do not go together yet");
}

/// Eight layers. Each adds the first one's output; `shared`: all have one parameter, too.
Graph skipping(bool shared) {
  std::string text = "input x [n,8]\nparameter w0 [8,8]\nh0 = MatMul(x, w0) [n,8]\n";
  for (int i = 1; i < 8; ++i) {
    const std::string n = std::to_string(i), last = "h" + std::to_string(i - 1);
    const std::string own = shared ? "w0" : "w" + n;
    if (!shared) text += "parameter w" + n + " [8,8]\n";
    text += "m" + n + " = MatMul(" + last + ", " + own + ") [n,8]\n";
    text += "h" + n + " = Add(m" + n + ", h0) [n,8]\n";
  }
  return graph_of(text + "l = ReduceSum(h7) []\noutputs h7\nloss l\n");
}

std::unique_ptr<const Problem> skipping_problem(bool shared) {
  return problem_of(skipping(shared),
                    cluster_of("kind gpu memory=16e9 bandwidth=900e9 fp32=1e12\n"
                               "host a gpu 2\n"),
                    8);
}

TEST(InterleavedLayout, TensorsSkipToStagesOfTheSameDevices) {
  const auto problem = skipping_problem(false);
  const auto layout = parse_layout("a/0|a/1|schedule=interleaved", problem->cluster);
  const auto strategies = make_layout_seeder(*layout)->seed(*problem, Rng(0));
  ASSERT_TRUE(strategies.ok()) << strategies.status().message();
  for (const Strategy& strategy : *strategies) {
    const auto evaluated = evaluate(*problem, strategy, {});
    ASSERT_TRUE(evaluated.ok()) << evaluated.status().message();
    EXPECT_TRUE(std::any_of(evaluated->plan.cuts.begin(), evaluated->plan.cuts.end(),
                            [&](const Cut& cut) { return is_local(evaluated->plan, cut); }));
    const auto again = strategy_of_plan(evaluated->plan, problem->graph, problem->cluster);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->stage_of, strategy.stage_of);
  }
}

TEST(InterleavedLayout, OfAGraphThatCannotBeCutSoIsInfeasible) {
  const auto problem = skipping_problem(true);
  const auto layout = parse_layout("a/0|a/1|schedule=interleaved", problem->cluster);
  const auto strategies = make_layout_seeder(*layout)->seed(*problem, Rng(0));
  EXPECT_EQ(strategies.status().code(), StatusCode::kInfeasible);
  EXPECT_THAT(strategies.status().message(),
              ::testing::HasSubstr("of the same devices share 'w0'\n  hint: another schedule"));
  const Planned with = planned(*problem, true);
  EXPECT_NE(with.best.strategy.schedule, Schedule::kInterleaved);
}

TEST(InterleavedPlans, AreStrategiesAgain) {
  const auto problem = pipeline_problem();
  const Planned with = planned(*problem, true);
  const auto strategy = strategy_of_plan(with.best.plan, problem->graph, problem->cluster);
  ASSERT_TRUE(strategy.ok()) << strategy.status().message();
  EXPECT_EQ(*strategy, with.best.strategy);
}

/// A search whose options leave interleaved stages out still keeps the plan that runs.
TEST(InterleavedPlans, AreKeptWhereTheyRun) {
  const auto problem = pipeline_problem();
  const Planned with = planned(*problem, true);
  EXPECT_EQ(warm_starts(*problem, with.best.plan).size(), 1U);
  ReplanOptions options;
  options.budget = 20;
  const auto again = replan(*problem, with.best.plan, options);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_FALSE(again->has_value()) << "nothing is better by as much as it takes to switch";
}

TEST(InterleavedPlans, SayWhatChangesWouldGain) {
  const auto problem = pipeline_problem();
  const Planned with = planned(*problem, true);
  const auto found = what_if_plan(*problem, with.best.strategy, with.best.estimate.step_seconds);
  ASSERT_TRUE(found.ok()) << found.status().message();
  std::set<std::string> families;
  for (const WhatIf& change : found->changes) families.insert(change.family);
  EXPECT_TRUE(families.contains("micro-batches"));
  EXPECT_FALSE(families.contains("schedule"));
  EXPECT_FALSE(families.contains("in flight"));
}

}  // namespace
}  // namespace agpcs::testing
