// SPDX-License-Identifier: Apache-2.0
#include "planner/what_if_operator.h"

#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::chain;
using testing::fast_and_slow;
using testing::graph_of;
using testing::problem_of;
using testing::strategy_of;

/// A strategy on a problem, and its step.
struct Standing {
  std::unique_ptr<const Problem> problem;
  Strategy strategy;
  double step_seconds;

  Standing(Graph graph, Cluster cluster, std::int64_t batch, const std::string& text)
      : problem(problem_of(std::move(graph), std::move(cluster), batch)),
        strategy(strategy_of(text, problem->graph, problem->cluster)),
        step_seconds(step_of(text)) {}

  /// The step of a strategy whose gradients the planner groups.
  double step_of(const std::string& text) const {
    Strategy of = strategy_of(text, problem->graph, problem->cluster);
    of.buckets.clear();
    return evaluate(*problem, std::move(of), MadeBy())->estimate.step_seconds;
  }

  OperatorPlace place(const std::string& name) const {
    return *what_if_operator(*problem, strategy, problem->graph.find_op(name), step_seconds);
  }

  /// Where the move leads, by which moves, with which operators, and what holds it: a line each.
  std::string text(const OperatorMove& move) const {
    std::string text = "to " + std::to_string(move.to) + "\n";
    for (const StrategyMove& one : move.moves) text += print_move(one, problem->cluster) + "\n";
    text += "along";
    for (const OpId op : move.along) text += " " + problem->graph.op(op).name;
    text += "\nheld by";
    for (const Hold hold : move.holds) text += " " + std::string(name_of(hold));
    return text + "\n";
  }
};

constexpr char kThreeStages[] =
    "micro-batches 4\nstage a/0=1024 : h0 a0\nstage a/1=1024 : h1 a1 h2\nstage b/0=1024 : *\n";

TEST(WhatIfOperator, SimulatesWhatAStrategyMadeByHandTakes) {
  const Standing now(chain(4, 1024), fast_and_slow(), 4096, kThreeStages);
  const OperatorPlace last = now.place("h2");
  EXPECT_EQ(last.stage, 1);
  ASSERT_EQ(last.moves.size(), 2u);
  EXPECT_EQ(last.moves[1].to, 2);
  EXPECT_EQ(last.moves[1].step_seconds,
            now.step_of("micro-batches 4\nstage a/0=1024 : h0 a0\nstage a/1=1024 : h1 a1\n"
                        "stage b/0=1024 : *\n"));
  const OperatorPlace first = now.place("h1");
  EXPECT_EQ(first.moves[0].to, 0);
  EXPECT_EQ(first.moves[0].step_seconds,
            now.step_of("micro-batches 4\nstage a/0=1024 : h0 a0 h1\nstage a/1=1024 : a1 h2\n"
                        "stage b/0=1024 : *\n"));
}

TEST(WhatIfOperator, TakesAlongWhatTheEdgesAskFor) {
  const Standing now(chain(4, 1024), fast_and_slow(), 4096, kThreeStages);
  const OperatorPlace place = now.place("a1");
  ASSERT_EQ(place.moves.size(), 2u);
  EXPECT_EQ(now.text(place.moves[0]),
            "to 0\nmove block 2 to the previous stage\nmove block 3 to the previous stage\n"
            "along h1\nheld by cut\n");
  EXPECT_EQ(now.text(place.moves[1]),
            "to 2\nmove block 4 to the next stage\nmove block 3 to the next stage\n"
            "along h2\nheld by cut step\n");
}

TEST(WhatIfOperator, MergesStagesWhereNothingWouldBeLeft) {
  const Standing now(chain(4, 1024), fast_and_slow(), 4096, kThreeStages);
  const OperatorPlace place = now.place("h0");
  ASSERT_EQ(place.moves.size(), 1u);
  EXPECT_EQ(now.text(place.moves[0]), "to 1\nmerge s0 and s1\nalong a0\nheld by cut stage\n");
}

TEST(WhatIfOperator, OfTwoBranchesOneGoesAlone) {
  const Standing now(graph_of("input x [n,64]\ninput labels int64[n]\n"
                              "parameter u [64,64]\nparameter v [64,64]\n"
                              "p = MatMul(x, u) [n,64]\nq = MatMul(x, v) [n,64]\n"
                              "y = Add(p, q) [n,64]\n"
                              "l = SoftmaxCrossEntropyLoss(y, labels) []\n"
                              "outputs y\nloss l\n"),
                     fast_and_slow(), 8, "stage a/0=8 : p q\nstage a/1=8 : *\n");
  const OperatorPlace place = now.place("p");
  ASSERT_EQ(place.moves.size(), 1u);
  EXPECT_TRUE(place.moves[0].along.empty());
  EXPECT_EQ(place.moves[0].step_seconds, now.step_of("stage a/0=8 : q\nstage a/1=8 : *\n"));
}

TEST(WhatIfOperator, SaysWhichDeviceWouldLackMemory) {
  // A layer takes 4 MB, its gradient as much: s1 has no room for a third of them.
  const Standing now(chain(4, 1024), fast_and_slow("28e6"), 16,
                     "stage a/0=16 : h0 a0 h1 a1\nstage a/1=16 : *\n");
  const OperatorPlace place = now.place("h1");
  ASSERT_EQ(place.moves.size(), 1u);
  EXPECT_FALSE(place.moves[0].step_seconds);
  EXPECT_GT(place.moves[0].fit.lacking(), 0);
  EXPECT_EQ(now.problem->cluster.device_name(place.moves[0].fit.device), "a/1");
  EXPECT_EQ(now.text(place.moves[0]),
            "to 1\nmove block 3 to the next stage\nmove block 2 to the next stage\n"
            "along a1\nheld by cut memory\n");
}

TEST(WhatIfOperator, SharesAreBalancedAsAfterAnyMove) {
  const Standing now(chain(4, 1024), fast_and_slow(), 4096,
                     "stage a/0=2048 b/0=2048 : h0 a0 h1 a1\nstage a/1=4096 : *\n");
  StageTimer timer(*now.problem, std::vector<OpId>{0, 1, 2, 3, 4});
  const StageSpec balanced = balanced_stage(*now.problem, timer, {0, 2}, 4096);
  EXPECT_NE(balanced.shares, (std::vector<std::int64_t>{2048, 2048}));
  EXPECT_EQ(now.place("h2").moves[0].step_seconds,
            now.step_of("stage a/0=" + std::to_string(balanced.shares[0]) +
                        " b/0=" + std::to_string(balanced.shares[1]) +
                        " : h0 a0 h1 a1 h2\nstage a/1=4096 : *\n"));
}

TEST(WhatIfOperator, TimesAreThoseOfTheCostTable) {
  const Standing now(chain(4, 1024), fast_and_slow(), 4096,
                     "stage a/0=1024 a/1=1024 b/0=2048 : h0 a0\nstage b/1=4096 : *\n");
  const OpId op = now.problem->graph.find_op("a0");
  const OperatorPlace place = now.place("a0");
  ASSERT_EQ(place.times.size(), 3u);
  const TimeOnDevices& fast = place.times[0];
  EXPECT_EQ(fast.devices, (std::vector<DeviceId>{0, 1}));
  EXPECT_EQ(fast.samples, 1024);
  EXPECT_EQ(fast.forward, now.problem->costs.seconds(0, op, 1024).forward);
  EXPECT_DOUBLE_EQ(fast.backward, now.problem->costs.seconds(0, op, 1024).backward);
  const double stage = now.problem->costs.seconds(0, op - 1, 1024).sum() +
                       now.problem->costs.seconds(0, op, 1024).sum();
  EXPECT_DOUBLE_EQ(fast.part, now.problem->costs.seconds(0, op, 1024).sum() / stage);
  EXPECT_EQ(place.times[2].stage, 1);
  EXPECT_EQ(place.times[2].samples, 4096);
  EXPECT_EQ(place.times[2].part, 0);
}

TEST(WhatIfOperator, NoMoveStartsWhereAPlanDividesBlocks) {
  const Graph graph = graph_of(
      "input x [n,64]\ninput labels int64[n]\nparameter u [64,64]\nparameter v [64,64]\n"
      "h = MatMul(x, u) [n,64]\nf = Flatten(h) [n,64]\ny = MatMul(f, v) [n,64]\n"
      "l = SoftmaxCrossEntropyLoss(y, labels) []\noutputs y\nloss l\n");
  const Standing divided(graph, fast_and_slow(), 8, "stage a/0=8 : h\nstage a/1=8 : *\n");
  EXPECT_TRUE(divided.place("y").divides_blocks);
  EXPECT_TRUE(divided.place("y").moves.empty());
  const Standing whole(graph, fast_and_slow(), 8, "stage a/0=8 : h f\nstage a/1=8 : *\n");
  const OperatorPlace place = whole.place("f");
  EXPECT_FALSE(place.divides_blocks);
  ASSERT_EQ(place.moves.size(), 1u);
  EXPECT_EQ(whole.text(place.moves[0]), "to 1\nmerge s0 and s1\nalong\nheld by block stage step\n");
}

}  // namespace
}  // namespace agpcs
