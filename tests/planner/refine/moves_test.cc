// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/moves/moves.h"

#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/group_gradients.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/refine/a_move.h"
#include "tests/planner/refine/search_problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace agpcs::testing {
namespace {

using Amount = ShiftCut::Amount;

Strategy grouped(const Problem& problem, Strategy strategy) {
  if (!strategy.buckets.empty()) return strategy;
  return group_gradients(problem, std::move(strategy), problem.options.bucket_bytes);
}

std::vector<std::string> texts(const std::vector<StrategyMove>& moves, const Cluster& cluster) {
  std::vector<std::string> result;
  for (const StrategyMove& move : moves) result.push_back(print_move(move, cluster));
  return result;
}

/// What random strategies of a problem list.
struct Listed {
  Strategy strategy, with_buckets;
  std::vector<StrategyMove> moves;
};

std::vector<StrategyMove> drawn(StrategyMoves& moves, const Strategy& strategy,
                                const Strategy& grouped, std::size_t most, Rng& rng) {
  MovesFrom all = moves.all(strategy, grouped);
  std::vector<StrategyMove> drawn;
  for (const DrawnMove& one : moves.draw(strategy, grouped, all, most, rng)) {
    drawn.push_back(one.move);
  }
  return drawn;
}

Listed list_some(const Problem& problem, StrategyMoves& moves, Rng& rng, std::size_t most) {
  Listed listed;
  listed.strategy = random_strategy(rng, problem);
  listed.with_buckets = grouped(problem, listed.strategy);
  listed.moves = drawn(moves, listed.strategy, listed.with_buckets, most, rng);
  return listed;
}

TEST(StrategyMoves, EveryListedMoveLeadsToAnotherStrategyThatVerifiesAndEvaluates) {
  std::set<std::size_t> kinds;
  for (std::uint64_t number = 0; number < 40; ++number) {
    const auto problem = search_problem(number);
    StrategyMoves moves(*problem);
    Evaluator evaluator(*problem);
    Rng rng = Rng(number).fork("moves");
    const auto text = [&](const Strategy& strategy) {
      return print_strategy(grouped(*problem, strategy), problem->graph, problem->cluster);
    };
    for (int i = 0; i < 4; ++i) {
      const Listed listed = list_some(*problem, moves, rng, 300);
      const std::string before = text(listed.with_buckets);
      for (const StrategyMove& move : listed.moves) {
        SCOPED_TRACE("problem " + std::to_string(number) + ": " +
                     print_move(move, problem->cluster) + " of\n" + before);
        const auto after = moves.apply(listed.strategy, listed.with_buckets, move);
        ASSERT_TRUE(after.has_value());
        const Status status =
            verify_strategy(*after, problem->graph, problem->cluster, problem->training.batch);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_NE(text(*after), before);
        ASSERT_GT(evaluator.evaluate(*after).step_seconds, 0);
        kinds.insert(move.index());
      }
    }
  }
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(kMoveKindCount));
}

TEST(StrategyMoves, AListIsAsLongAsWantedWithoutDoublesAndTakesKindsInTurns) {
  for (std::uint64_t number = 0; number < 12; ++number) {
    const auto problem = search_problem(number);
    StrategyMoves moves(*problem);
    Rng rng = Rng(number).fork("moves");
    const Listed all = list_some(*problem, moves, rng, 1'000'000);
    std::array<std::size_t, kMoveKindCount> of_all{}, of_some{};
    for (const StrategyMove& move : all.moves) ++of_all[move.index()];
    const std::vector<std::string> of_texts = texts(all.moves, problem->cluster);
    const std::set<std::string> different(of_texts.begin(), of_texts.end());
    EXPECT_EQ(different.size(), all.moves.size());
    const std::vector<StrategyMove> some = drawn(moves, all.strategy, all.with_buckets, 30, rng);
    EXPECT_EQ(some.size(), std::min<std::size_t>(30, all.moves.size()));
    for (const StrategyMove& move : some) ++of_some[move.index()];
    for (const std::string& text : texts(some, problem->cluster)) {
      EXPECT_EQ(different.count(text), 1U) << text;
    }
    const std::size_t most = *std::max_element(of_some.begin(), of_some.end());
    for (std::size_t kind = 0; kind < of_all.size(); ++kind) {
      EXPECT_GE(of_some[kind] + 1, std::min(of_all[kind] + 1, most - 1)) << "kind " << kind;
    }
  }
}

constexpr const char* kOneStage = "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : *\n";
constexpr const char* kTwoBuckets =
    "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : *\nbucket 0 ring w2 w1\nbucket 0 tree w0\n";

TEST_F(AMove, ShiftsTheBoundaryByABlockOrAPartOfTheWork) {
  EXPECT_EQ(after(kTwoStages, ShiftCut{0, Neighbour::kNext, Amount::kOneBlock}),
            "stage a/0=2000 a/1=2000 : h0..a0\n"
            "stage b/0=4000 : h1..l\n");
  EXPECT_EQ(after(kTwoStages, ShiftCut{0, Neighbour::kPrevious, Amount::kOneBlock}),
            "stage a/0=2000 a/1=2000 : h0..a1\n"
            "stage b/0=4000 : h2..l\n");
  EXPECT_EQ(after(kTwoStages, ShiftCut{0, Neighbour::kPrevious, Amount::kHalf}),
            "stage a/0=2000 a/1=2000 : h0..h2\n"
            "stage b/0=4000 : a2..l\n");
  EXPECT_EQ(after("stage a/0=8000 : h0..h2\nstage b/0=8000 : a2..l\n",
                  ShiftCut{0, Neighbour::kPrevious, Amount::kOneBlock}),
            "impossible");
}

TEST_F(AMove, MergesAStageWithTheNext) {
  EXPECT_EQ(after(kTwoStages, MergeStages{0}), "stage a/0=1715 a/1=1714 b/0=571 : h0..l\n");
}

TEST_F(AMove, SplitsAStageAndItsDevices) {
  EXPECT_EQ(after(kOneStage, SplitStage{0, 0, false}),
            "stage a/0=4000 a/1=4000 : h0..a1\n"
            "stage b/0=4000 b/1=4000 : h2..l\n");
  EXPECT_EQ(after(kOneStage, SplitStage{0, 1, true}),
            "stage b/1=8000 : h0\n"
            "stage a/0=3429 a/1=3429 b/0=1142 : a0..l\n");
  EXPECT_EQ(after(kOneStage, SplitStage{0, 2, true}), "impossible");
  EXPECT_EQ(after(kTwoStages, SplitStage{0, 1, false}),
            "stage a/0=2000 a/1=2000 : h0..a0\n"
            "stage b/1=4000 : h1\n"
            "stage b/0=4000 : a1..l\n");
}

TEST_F(AMove, MovesOneDeviceOrAllOfItsLike) {
  EXPECT_EQ(after(kTwoStages, MoveDevices{1, DeviceUnit::kAlone, 1}),
            "stage a/0=4000 : h0..h1\n"
            "stage a/1=3000 b/0=1000 : a1..l\n");
  EXPECT_EQ(after(kTwoStages, MoveDevices{0, DeviceUnit::kKindOnHost, 1}), "impossible");
  EXPECT_EQ(after(kOneStage, MoveDevices{2, DeviceUnit::kAlone, kNoStage}),
            "stage a/0=3429 a/1=3429 b/1=1142 : h0..l\n");
  EXPECT_EQ(after(kOneStage, MoveDevices{2, DeviceUnit::kKindOnHost, kNoStage}),
            "stage a/0=4000 a/1=4000 : h0..l\n");
  EXPECT_EQ(after(kOneStage, MoveDevices{0, DeviceUnit::kKind, kNoStage}),
            "stage b/0=4000 b/1=4000 : h0..l\n");
  EXPECT_EQ(after(kTwoStages, MoveDevices{3, DeviceUnit::kAlone, 0}),
            "stage a/0=1715 a/1=1714 b/1=571 : h0..h1\n"
            "stage b/0=4000 : a1..l\n");
}

TEST_F(AMove, SwapsDevicesOfStagesOrAnIdleOne) {
  EXPECT_EQ(after(kTwoStages, SwapDevices{0, 2}),
            "stage a/1=3000 b/0=1000 : h0..h1\n"
            "stage a/0=4000 : a1..l\n");
  EXPECT_EQ(after(kTwoStages, SwapDevices{0, 3}),
            "stage a/1=3000 b/1=1000 : h0..h1\n"
            "stage b/0=4000 : a1..l\n");
}

TEST_F(AMove, SwapsAllDevicesOfTwoStages) {
  EXPECT_EQ(after(kTwoStages, SwapGroups{0, 1}),
            "stage b/0=4000 : h0..h1\n"
            "stage a/0=2000 a/1=2000 : a1..l\n");
}

TEST_F(AMove, MovesSamplesBetweenReplicas) {
  EXPECT_EQ(after(kOneStage, MoveSamples{0, 0, 3, 2}),
            "stage a/0=2998 a/1=3000 b/0=1000 b/1=1002 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
}

TEST_F(AMove, RebalancesSharesBySpeedOrEqually) {
  EXPECT_EQ(after(kOneStage, SetShares{0, ShareRule::kBySpeed}), "impossible");
  EXPECT_EQ(after(kOneStage, SetShares{0, ShareRule::kEqual}),
            "stage a/0=2000 a/1=2000 b/0=2000 b/1=2000 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
}

TEST_F(AMove, OfAllSamplesOfADeviceLeavesItOut) {
  EXPECT_EQ(after(kOneStage, MoveSamples{0, 3, 1, 1000}),
            "stage a/0=3000 a/1=4000 b/0=1000 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
  EXPECT_EQ(after(kOneStage, MoveSamples{0, 3, 1, 1001}), "impossible");
}

TEST_F(AMove, OfAHostLeavesOutItsDevicesOfAllKinds) {
  EXPECT_EQ(after(kOneStage, MoveDevices{2, DeviceUnit::kHost, kNoStage}),
            "stage a/0=4000 a/1=4000 : h0..l\n");
}

TEST_F(AMove, ChangesMicroBatchesWithSharesInProportion) {
  EXPECT_EQ(after(kOneStage, SetMicroBatches{4, true}),
            "micro-batches 4 1f1b\n"
            "stage a/0=750 a/1=750 b/0=250 b/1=250 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
}

TEST_F(AMove, ChangesTheNumberOfMicroBatches) {
  EXPECT_EQ(after(kTwoStages, SetMicroBatches{4}),
            "micro-batches 4 1f1b\n"
            "stage a/0=1000 a/1=1000 : h0..h1\n"
            "stage b/0=2000 : a1..l\n");
}

TEST_F(AMove, ChangesTheSchedule) {
  EXPECT_EQ(after(kTwoStages, SetSchedule{Schedule::kGPipe}),
            "micro-batches 2 gpipe\n"
            "stage a/0=2000 a/1=2000 : h0..h1\n"
            "stage b/0=4000 : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
}

TEST_F(AMove, CutsAnewForTheSameDevicesInAnotherOrder) {
  EXPECT_EQ(after(kTwoStages, Recut{GroupOrder::kKept, CutRule::kBySpeed}),
            "stage a/0=2000 a/1=2000 : h0..h2\n"
            "stage b/0=4000 : a2..l\n");
  EXPECT_EQ(after(kTwoStages, Recut{GroupOrder::kReversed, CutRule::kBySpeed}),
            "stage b/0=4000 : h0\n"
            "stage a/0=2000 a/1=2000 : a0..l\n");
  EXPECT_EQ(after(kTwoStages, Recut{GroupOrder::kRotatedLeft, CutRule::kByMemory}),
            "stage b/0=4000 : h0\n"
            "stage a/0=2000 a/1=2000 : a0..l\n");
}

TEST_F(AMove, DividesDevicesIntoStagesAnew) {
  EXPECT_EQ(after(kTwoStages, Restage{2, DeviceOrder::kOfCluster, CutRule::kBySpeed, true}),
            "stage a/0=2000 a/1=2000 : h0..a1\n"
            "stage b/0=2000 b/1=2000 : h2..l\n");
  EXPECT_EQ(after(kTwoStages, Restage{2, DeviceOrder::kReversed, CutRule::kBySpeed, true}),
            "stage b/0=2000 b/1=2000 : h0..a0\n"
            "stage a/0=2000 a/1=2000 : h1..l\n");
  EXPECT_EQ(after(kTwoStages, Restage{2, DeviceOrder::kFastestFirst, CutRule::kBySpeed, true}),
            "stage a/0=2000 a/1=2000 : h0..a1\n"
            "stage b/0=2000 b/1=2000 : h2..l\n");
  EXPECT_EQ(after(kTwoStages, Restage{3, DeviceOrder::kOfCluster, CutRule::kByMemory, false}),
            "stage a/0=4000 : h0\n"
            "stage a/1=4000 : a0..h1\n"
            "stage b/0=4000 : a1..l\n");
  EXPECT_EQ(after(kTwoStages, Restage{4, DeviceOrder::kOfCluster, CutRule::kByMemory, false}),
            "impossible");
}

TEST_F(AMove, MergesBuckets) {
  EXPECT_EQ(after(kTwoBuckets, MergeBuckets{0, 1}),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
}

TEST_F(AMove, SplitsABucket) {
  EXPECT_EQ(after(kTwoBuckets, SplitBucket{0, 1}),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 ring w2\n"
            "bucket 0 ring w1\n"
            "bucket 0 tree w0\n");
}

TEST_F(AMove, SwapsBuckets) {
  EXPECT_EQ(after(kTwoBuckets, SwapBuckets{0, 1}),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 tree w0\n"
            "bucket 0 ring w2 w1\n");
}

TEST_F(AMove, ChangesTheAlgorithmOfOneBucketOrOfAllOfAStage) {
  EXPECT_EQ(after(kTwoBuckets, SetAlgorithm{0, 1, AllReduce::kHierarchical}),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 ring w2 w1\n"
            "bucket 0 hierarchical w0\n");
  EXPECT_EQ(after(kTwoBuckets, SetAlgorithm{0, kAllBuckets, AllReduce::kTree}),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 tree w2 w1\n"
            "bucket 0 tree w0\n");
}

// In a chain only a shift moves a block; of two branches each can go on alone.
TEST(ABlock, OfABranchGoesToTheNextStageAndBack) {
  const auto problem = problem_of(graph_of("input x [n,64]\ninput labels int64[n]\n"
                                           "parameter u [64,64]\nparameter v [64,64]\n"
                                           "p = MatMul(x, u) [n,64]\nq = MatMul(x, v) [n,64]\n"
                                           "y = Add(p, q) [n,64]\n"
                                           "l = SoftmaxCrossEntropyLoss(y, labels) []\n"
                                           "outputs y\nloss l\n"),
                                  fast_and_slow(), 8);
  StrategyMoves moves(*problem);
  const Strategy start =
      strategy_of("stage a/0=8 : p q\nstage a/1=8 : *\n", problem->graph, problem->cluster);
  const MoveBlock go_on{0, Neighbour::kNext}, come_back{0, Neighbour::kPrevious};
  const auto after = moves.apply(start, start, go_on);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->stage_of, (std::vector<int>{1, 0, 1, 1}));
  Rng rng(1);
  const std::vector<std::string> listed =
      texts(drawn(moves, start, start, 1000, rng), problem->cluster);
  EXPECT_EQ(std::count(listed.begin(), listed.end(), print_move(go_on, problem->cluster)), 1);
  EXPECT_EQ(moves.apply(*after, *after, come_back)->stage_of, start.stage_of);
  EXPECT_FALSE(moves.apply(*after, *after, go_on).has_value());
}

TEST(PrintMove, SaysEveryMoveInWords) {
  const Cluster cluster = fast_and_slow();
  const auto text = [&](const StrategyMove& move) { return print_move(move, cluster); };
  EXPECT_EQ(text(ShiftCut{1, Neighbour::kNext, Amount::kOneBlock}),
            "shift one block from s1 to s2");
  EXPECT_EQ(text(ShiftCut{1, Neighbour::kPrevious, Amount::kEighth}), "shift 1/8 from s2 to s1");
  EXPECT_EQ(text(MoveBlock{3, Neighbour::kNext}), "move block 3 to the next stage");
  EXPECT_EQ(text(MoveBlock{3, Neighbour::kPrevious}), "move block 3 to the previous stage");
  EXPECT_EQ(text(MergeStages{1}), "merge s1 and s2");
  EXPECT_EQ(text(SplitStage{0, 2, false}), "split s0, devices in way 2");
  EXPECT_EQ(text(SplitStage{0, 2, true}), "split s0, devices in way 2, swapped");
  EXPECT_EQ(text(MoveDevices{1, DeviceUnit::kAlone, 2}), "move a/1 to s2");
  EXPECT_EQ(text(MoveDevices{1, DeviceUnit::kKindOnHost, 0}),
            "move a/1 and its kind on its host to s0");
  EXPECT_EQ(text(MoveDevices{1, DeviceUnit::kKind, kNoStage}), "leave out a/1 and its kind");
  EXPECT_EQ(text(MoveDevices{1, DeviceUnit::kHost, kNoStage}), "leave out a/1 and its host");
  EXPECT_EQ(text(SwapDevices{0, 3}), "swap a/0 and b/1");
  EXPECT_EQ(text(SwapGroups{0, 1}), "swap the devices of s0 and s1");
  EXPECT_EQ(text(MoveSamples{0, 2, 0, 1}), "move 1 sample of s0 from b/0 to a/0");
  EXPECT_EQ(text(SetShares{1, ShareRule::kBySpeed}), "share the samples of s1 by speed");
  EXPECT_EQ(text(SetShares{1, ShareRule::kEqual}), "share the samples of s1 equally");
  EXPECT_EQ(text(SetMicroBatches{4}), "set 4 micro-batches");
  EXPECT_EQ(text(SetMicroBatches{1, true}), "set 1 micro-batch, shares in proportion");
  EXPECT_EQ(text(SetSchedule{Schedule::kGPipe}), "set schedule gpipe");
  EXPECT_EQ(text(SetMemory{2, kWholeStage}), "recompute the activations of s2");
  EXPECT_EQ(text(SetMemory{kAllStages, Recomputation{}}), "keep the activations of all stages");
  EXPECT_EQ(text(SetMemory{2, Recomputation{8, 3}}),
            "recompute 5 of 8 segments of the activations of s2");
  EXPECT_EQ(text(SetMemory{1, {}, {}, {}, true}),
            "have the optimizer's state of s1 in the memory of hosts");
  EXPECT_EQ(text(SetMemory{1, std::nullopt, StateLevel::kOptimizer}),
            "divide the optimizer's state of s1");
  EXPECT_EQ(text(SetMemory{1, kWholeStage, StateLevel::kGradients}),
            "recompute the activations of s1, divide the optimizer's state and gradients of s1");
  EXPECT_EQ(text(SetMemory{1, Recomputation{}, StateLevel::kWhole}),
            "keep the activations of s1, keep the optimizer's state of s1");
  EXPECT_EQ(text(Recut{GroupOrder::kKept, CutRule::kBySpeed}), "cut anew by speed");
  EXPECT_EQ(text(Recut{GroupOrder::kRotatedLeft, CutRule::kByMemory}),
            "cut anew by memory, groups rotated left");
  EXPECT_EQ(text(Recut{GroupOrder::kRotatedRight, CutRule::kByMemory}),
            "cut anew by memory, groups rotated right");
  EXPECT_EQ(text(Recut{GroupOrder::kReversed, CutRule::kBySpeed}),
            "cut anew by speed, groups reversed");
  EXPECT_EQ(text(Restage{1, DeviceOrder::kOfCluster, CutRule::kBySpeed, false}),
            "make 1 stage of the devices in use by speed");
  EXPECT_EQ(text(Restage{2, DeviceOrder::kReversed, CutRule::kByMemory, true}),
            "make 2 stages of all devices by memory, devices reversed");
  EXPECT_EQ(text(Restage{3, DeviceOrder::kFastestFirst, CutRule::kBySpeed, true}),
            "make 3 stages of all devices by speed, fastest devices first");
  EXPECT_EQ(text(MergeBuckets{0, 1}), "merge b1 into b0");
  EXPECT_EQ(text(SplitBucket{1, 4}), "split b1 at gradient 4");
  EXPECT_EQ(text(SwapBuckets{0, 2}), "swap b0 and b2");
  EXPECT_EQ(text(SetAlgorithm{0, 2, AllReduce::kTree}), "reduce b2 by tree");
  EXPECT_EQ(text(SetAlgorithm{1, kAllBuckets, AllReduce::kHierarchical}),
            "reduce all buckets of s1 by hierarchical");
}

}  // namespace
}  // namespace agpcs::testing
