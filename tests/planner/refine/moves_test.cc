// SPDX-License-Identifier: Apache-2.0
#include "planner/strategy_moves.h"

#include "planner/evaluator.h"
#include "planner/group_gradients.h"
#include "tests/planner/random_strategies.h"
#include "tests/planner/search_problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace agpcs::testing {
namespace {

using ::testing::HasSubstr;

Strategy grouped(const Problem& problem, Strategy strategy) {
  if (!strategy.buckets.empty()) return strategy;
  return group_gradients(problem, std::move(strategy), problem.options.bucket_bytes);
}

std::string name_of(const Move& move) {
  return std::string(agpcs::name_of(static_cast<MoveKind>(move.kind))) + " " +
         std::to_string(move.a) + " " + std::to_string(move.b) + " " + std::to_string(move.c) +
         " " + std::to_string(move.d);
}

/// What random strategies of a problem list.
struct Listed {
  Strategy strategy, with_buckets;
  std::vector<Move> moves;
};

Listed list_some(const Problem& problem, StrategyMoves& moves, Rng& rng, std::size_t most) {
  Listed listed;
  listed.strategy = random_strategy(rng, problem);
  listed.with_buckets = grouped(problem, listed.strategy);
  listed.moves = moves.list(listed.strategy, listed.with_buckets, most, rng);
  return listed;
}

TEST(StrategyMoves, EveryListedMoveLeadsToAnotherStrategyThatVerifiesAndEvaluates) {
  std::set<int> kinds;
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
      for (const Move& move : listed.moves) {
        SCOPED_TRACE("problem " + std::to_string(number) + ": " + name_of(move) + " of\n" + before);
        const auto after = moves.apply(listed.strategy, listed.with_buckets, move);
        ASSERT_TRUE(after.has_value());
        const Status status =
            verify_strategy(*after, problem->graph, problem->cluster, problem->training.batch);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_NE(text(*after), before);
        ASSERT_GT(evaluator.evaluate(*after).step_seconds, 0);
        kinds.insert(move.kind);
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
    for (std::size_t i = 0; i < all.moves.size(); ++i) {
      ++of_all[static_cast<std::size_t>(all.moves[i].kind)];
      EXPECT_EQ(std::count(all.moves.begin(), all.moves.end(), all.moves[i]), 1);
    }
    const std::vector<Move> some = moves.list(all.strategy, all.with_buckets, 30, rng);
    EXPECT_EQ(some.size(), std::min<std::size_t>(30, all.moves.size()));
    for (const Move& move : some) {
      ++of_some[static_cast<std::size_t>(move.kind)];
      EXPECT_EQ(std::count(all.moves.begin(), all.moves.end(), move), 1) << name_of(move);
    }
    const std::size_t most = *std::max_element(of_some.begin(), of_some.end());
    for (std::size_t kind = 0; kind < of_all.size(); ++kind) {
      EXPECT_GE(of_some[kind] + 1, std::min(of_all[kind] + 1, most - 1)) << "kind " << kind;
    }
  }
}

/// Three layers of 512 units on two fast and two slow devices, 8000 samples.
class AMove : public ::testing::Test {
 protected:
  AMove() : problem_(problem_of(chain(3, 512), fast_and_slow(), 8000)), moves_(*problem_) {}

  Strategy strategy(const std::string& text) const {
    return strategy_of(text, problem_->graph, problem_->cluster);
  }

  /// In the language of `strategy_of`; micro-batches and schedule only where they are not
  /// `start`'s.
  std::string text(const Strategy& strategy, const Strategy& start) const {
    std::string text;
    if (strategy.micro_batches != start.micro_batches || strategy.schedule != start.schedule) {
      text = "micro-batches " + std::to_string(strategy.micro_batches) + " " +
             std::string(agpcs::name_of(strategy.schedule)) + "\n";
    }
    for (int s = 0; s < static_cast<int>(strategy.stages.size()); ++s) {
      const StageSpec& spec = strategy.stages[static_cast<std::size_t>(s)];
      text += "stage";
      for (std::size_t i = 0; i < spec.devices.size(); ++i) {
        text += " " + problem_->cluster.device_name(spec.devices[i]) + "=" +
                std::to_string(spec.shares[i]);
      }
      text += std::string(spec.recompute ? " recompute" : "") + " :";
      const auto& stages = strategy.stage_of;
      const auto first = std::find(stages.begin(), stages.end(), s) - stages.begin();
      const auto last = stages.rend() - std::find(stages.rbegin(), stages.rend(), s) - 1;
      text += " " + problem_->graph.op(static_cast<OpId>(first)).name;
      if (last > first) text += ".." + problem_->graph.op(static_cast<OpId>(last)).name;
      text += "\n";
    }
    for (const Bucket& bucket : strategy.buckets) {
      text += "bucket " + std::to_string(bucket.stage) + " " +
              std::string(agpcs::name_of(bucket.algorithm));
      for (const TensorId id : bucket.parameters) text += " " + problem_->graph.tensor(id).name;
      text += "\n";
    }
    return text;
  }

  /// Where the move leads from `before`; "impossible" where it leads nowhere.
  std::string after(const std::string& before, MoveKind kind, int a = 0, int b = 0, int c = 0,
                    int d = 0) {
    const Strategy start = strategy(before);
    const auto changed = moves_.apply(start, start, {static_cast<int>(kind), a, b, c, d});
    return changed ? text(*changed, start) : "impossible";
  }

  std::unique_ptr<const Problem> problem_;
  StrategyMoves moves_;
};

constexpr const char* kTwoStages =
    "micro-batches 2 1f1b\nstage a/0=2000 a/1=2000 : h0 a0 h1\nstage b/0=4000 : *\n";
constexpr const char* kOneStage = "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : *\n";
constexpr const char* kTwoBuckets =
    "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : *\nbucket 0 ring w2 w1\nbucket 0 tree w0\n";

TEST_F(AMove, ShiftsTheBoundaryByABlockOrAPartOfTheWork) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kShift, 0, 0, 0),
            "stage a/0=2000 a/1=2000 : h0..a0\n"
            "stage b/0=4000 : h1..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kShift, 0, 1, 0),
            "stage a/0=2000 a/1=2000 : h0..a1\n"
            "stage b/0=4000 : h2..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kShift, 0, 1, 3),
            "stage a/0=2000 a/1=2000 : h0..h2\n"
            "stage b/0=4000 : a2..l\n");
  EXPECT_EQ(after("stage a/0=8000 : h0..h2\nstage b/0=8000 : a2..l\n", MoveKind::kShift, 0, 1, 0),
            "impossible");
}

TEST_F(AMove, MergesAStageWithTheNext) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kMerge, 0), "stage a/0=1715 a/1=1714 b/0=571 : h0..l\n");
}

TEST_F(AMove, SplitsAStageAndItsDevices) {
  EXPECT_EQ(after(kOneStage, MoveKind::kSplit, 0, 0, 0),
            "stage a/0=4000 a/1=4000 : h0..a1\n"
            "stage b/0=4000 b/1=4000 : h2..l\n");
  EXPECT_EQ(after(kOneStage, MoveKind::kSplit, 0, 1, 1),
            "stage b/1=8000 : h0\n"
            "stage a/0=3429 a/1=3429 b/0=1142 : a0..l\n");
  EXPECT_EQ(after(kOneStage, MoveKind::kSplit, 0, 2, 1), "impossible");
  EXPECT_EQ(after(kTwoStages, MoveKind::kSplit, 0, 1, 0),
            "stage a/0=2000 a/1=2000 : h0..a0\n"
            "stage b/1=4000 : h1\n"
            "stage b/0=4000 : a1..l\n");
}

TEST_F(AMove, MovesOneDeviceOrAllOfItsLike) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kMoveDevices, 1, 1, 0),
            "stage a/0=4000 : h0..h1\n"
            "stage a/1=3000 b/0=1000 : a1..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kMoveDevices, 0, 1, 1), "impossible");
  EXPECT_EQ(after(kOneStage, MoveKind::kMoveDevices, 2, -1, 0),
            "stage a/0=3429 a/1=3429 b/1=1142 : h0..l\n");
  EXPECT_EQ(after(kOneStage, MoveKind::kMoveDevices, 2, -1, 1),
            "stage a/0=4000 a/1=4000 : h0..l\n");
  EXPECT_EQ(after(kOneStage, MoveKind::kMoveDevices, 0, -1, 2),
            "stage b/0=4000 b/1=4000 : h0..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kMoveDevices, 3, 0, 0),
            "stage a/0=1715 a/1=1714 b/1=571 : h0..h1\n"
            "stage b/0=4000 : a1..l\n");
}

TEST_F(AMove, SwapsDevicesOfStagesOrAnIdleOne) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kSwapDevices, 0, 2),
            "stage a/1=3000 b/0=1000 : h0..h1\n"
            "stage a/0=4000 : a1..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kSwapDevices, 0, 3),
            "stage a/1=3000 b/1=1000 : h0..h1\n"
            "stage b/0=4000 : a1..l\n");
}

TEST_F(AMove, SwapsAllDevicesOfTwoStages) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kSwapGroups, 0, 1),
            "stage b/0=4000 : h0..h1\n"
            "stage a/0=2000 a/1=2000 : a1..l\n");
}

TEST_F(AMove, MovesSamplesBetweenReplicas) {
  EXPECT_EQ(after(kOneStage, MoveKind::kShares, 0, 0, 3, 2),
            "stage a/0=2998 a/1=3000 b/0=1000 b/1=1002 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
}

TEST_F(AMove, RebalancesSharesBySpeedOrEqually) {
  EXPECT_EQ(after(kOneStage, MoveKind::kRebalance, 0, 0), "impossible");
  EXPECT_EQ(after(kOneStage, MoveKind::kRebalance, 0, 1),
            "stage a/0=2000 a/1=2000 b/0=2000 b/1=2000 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
}

TEST_F(AMove, ChangesTheNumberOfMicroBatches) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kMicroBatches, 4),
            "micro-batches 4 1f1b\n"
            "stage a/0=1000 a/1=1000 : h0..h1\n"
            "stage b/0=2000 : a1..l\n");
}

TEST_F(AMove, ChangesTheSchedule) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kSchedule),
            "micro-batches 2 gpipe\n"
            "stage a/0=2000 a/1=2000 : h0..h1\n"
            "stage b/0=4000 : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
}

TEST_F(AMove, TurnsRecomputationOnAndOff) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kRecompute, 1),
            "stage a/0=2000 a/1=2000 : h0..h1\n"
            "stage b/0=4000 recompute : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRecompute, -1, 1),
            "stage a/0=2000 a/1=2000 recompute : h0..h1\n"
            "stage b/0=4000 recompute : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRecompute, -1, 0), "impossible");
}

TEST_F(AMove, CutsAnewForTheSameDevicesInAnotherOrder) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kRecut, 0, 0),
            "stage a/0=2000 a/1=2000 : h0..h2\n"
            "stage b/0=4000 : a2..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRecut, 3, 0),
            "stage b/0=4000 : h0\n"
            "stage a/0=2000 a/1=2000 : a0..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRecut, 1, 1),
            "stage b/0=4000 : h0\n"
            "stage a/0=2000 a/1=2000 : a0..l\n");
}

TEST_F(AMove, DividesDevicesIntoStagesAnew) {
  EXPECT_EQ(after(kTwoStages, MoveKind::kRestage, 2, 0, 0, 1),
            "stage a/0=2000 a/1=2000 : h0..a1\n"
            "stage b/0=2000 b/1=2000 : h2..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRestage, 2, 1, 0, 1),
            "stage b/0=2000 b/1=2000 : h0..a0\n"
            "stage a/0=2000 a/1=2000 : h1..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRestage, 2, 2, 0, 1),
            "stage a/0=2000 a/1=2000 : h0..a1\n"
            "stage b/0=2000 b/1=2000 : h2..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRestage, 3, 0, 1, 0),
            "stage a/0=4000 : h0\n"
            "stage a/1=4000 : a0..h1\n"
            "stage b/0=4000 : a1..l\n");
  EXPECT_EQ(after(kTwoStages, MoveKind::kRestage, 4, 0, 1, 0), "impossible");
}

TEST_F(AMove, MergesBuckets) {
  EXPECT_EQ(after(kTwoBuckets, MoveKind::kMergeBuckets, 0, 1),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 ring w2 w1 w0\n");
}

TEST_F(AMove, SplitsABucket) {
  EXPECT_EQ(after(kTwoBuckets, MoveKind::kSplitBucket, 0, 1),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 ring w2\n"
            "bucket 0 ring w1\n"
            "bucket 0 tree w0\n");
}

TEST_F(AMove, SwapsBuckets) {
  EXPECT_EQ(after(kTwoBuckets, MoveKind::kSwapBuckets, 0, 1),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 tree w0\n"
            "bucket 0 ring w2 w1\n");
}

TEST_F(AMove, ChangesTheAlgorithmOfOneBucketOrOfAllOfAStage) {
  EXPECT_EQ(after(kTwoBuckets, MoveKind::kBucketAlgorithm, 1, 1),
            "stage a/0=3000 a/1=3000 b/0=1000 b/1=1000 : h0..l\n"
            "bucket 0 ring w2 w1\n"
            "bucket 0 hierarchical w0\n");
  EXPECT_EQ(after(kTwoBuckets, MoveKind::kBucketAlgorithm, -1, 2),
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
  const Move go_on = {static_cast<int>(MoveKind::kMoveBlock), 0, 1, 0, 0};
  const auto after = moves.apply(start, start, go_on);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->stage_of, (std::vector<int>{1, 0, 1, 1}));
  Rng rng(1);
  const std::vector<Move> listed = moves.list(start, start, 1000, rng);
  EXPECT_EQ(std::count(listed.begin(), listed.end(), go_on), 1);
  const Move come_back = {static_cast<int>(MoveKind::kMoveBlock), 0, -1, 0, 0};
  EXPECT_EQ(moves.apply(*after, *after, come_back)->stage_of, start.stage_of);
  EXPECT_FALSE(moves.apply(*after, *after, go_on).has_value());
}

}  // namespace
}  // namespace agpcs::testing
