// SPDX-License-Identifier: Apache-2.0
// Moves that change what stages keep: micro-batches in flight, activations, the optimizer's state.
#include "planner/evaluate/group_gradients.h"
#include "tests/planner/refine/a_move.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

using Amount = ShiftCut::Amount;

constexpr const char* kThreeStages =
    "micro-batches 8 1f1b\nstage a/0=1000 : h0 a0\nstage a/1=1000 : h1 a1\nstage b/0=1000 : *\n"
    "bucket 0 ring w0\nbucket 1 ring w1\nbucket 2 ring w2\n";

/// What the stages of `kThreeStages`, or of `before`, have in flight after a move.
class InFlightAfter : public AMove {
 protected:
  std::vector<std::int64_t> after(const StrategyMove& move, std::vector<std::int64_t> before = {}) {
    Strategy start = strategy(kThreeStages);
    for (std::size_t s = 0; s < before.size(); ++s) start.stages[s].in_flight = before[s];
    const auto changed = moves_.apply(start, start, move);
    if (!changed) return {};
    EXPECT_EQ(verify_strategy(*changed, problem_->graph, problem_->cluster, 8000).message(), "");
    return in_flight_by_stage(*changed);
  }
  static SetMemory in_flight(int stage, InFlight change) {
    return {stage, std::nullopt, std::nullopt, change};
  }
};

using Numbers = std::vector<std::int64_t>;

TEST_F(InFlightAfter, MoreInAStageIsMoreInAllBeforeIt) {
  EXPECT_EQ(after(in_flight(0, InFlight::kOneMore)), (Numbers{4, 2, 1}));
  EXPECT_EQ(after(in_flight(1, InFlight::kOneMore)), (Numbers{4, 3, 1}));
  EXPECT_EQ(after(in_flight(2, InFlight::kOneMoreAStage)), (Numbers{5, 3, 1}));
  EXPECT_EQ(after(in_flight(2, InFlight::kOneMoreAStage), {5, 3, 1}), (Numbers{7, 4, 1}));
  EXPECT_EQ(after(in_flight(1, InFlight::kOneMoreAStage), {8, 3, 3}), Numbers{});  // of 8
}

TEST_F(InFlightAfter, FewerInAStageIsNoMoreInAllAfterIt) {
  EXPECT_EQ(after(in_flight(0, InFlight::kOneFewer)), (Numbers{2, 2, 1}));
  EXPECT_EQ(after(in_flight(0, InFlight::kHalfAsMany)), (Numbers{1, 1, 1}));
  EXPECT_EQ(after(in_flight(1, InFlight::kHalfAsMany), {8, 8, 6}), (Numbers{8, 4, 4}));
  EXPECT_EQ(after(in_flight(2, InFlight::kOneFewer)), Numbers{});  // it has one
}

TEST_F(InFlightAfter, TheTextbooksNumbersComeBack) {
  EXPECT_EQ(after(in_flight(kAllStages, InFlight::kTextbook), {8, 4, 4}), (Numbers{3, 2, 1}));
  EXPECT_EQ(after(in_flight(kAllStages, InFlight::kTextbook)), Numbers{});
}

TEST_F(InFlightAfter, OtherMovesKeepThemAsFarAsTheyCan) {
  EXPECT_EQ(after(ShiftCut{0, Neighbour::kNext, Amount::kOneBlock}, {7, 5, 3}), (Numbers{7, 5, 3}));
  EXPECT_EQ(after(SetMicroBatches{4}, {7, 5, 3}), (Numbers{4, 4, 3}));
  EXPECT_EQ(after(SetSchedule{Schedule::kGPipe}, {7, 5, 3}), (Numbers{8, 8, 8}));
  EXPECT_EQ(after(MergeStages{1}, {7, 5, 3}), (Numbers{7, 5}));
  EXPECT_EQ(after(SplitStage{1, 0, false}, {7, 5, 3}), (Numbers{7, 5, 5, 3}));
  EXPECT_EQ(after(Recut{GroupOrder::kReversed, CutRule::kBySpeed}, {7, 5, 3}), (Numbers{7, 5, 3}));
  EXPECT_EQ(after(Restage{2, DeviceOrder::kOfCluster, CutRule::kBySpeed, false}, {7, 5, 3}),
            (Numbers{2, 1}));
}

TEST_F(AMove, ThatCutsAnewKeepsWhatStagesKeep) {
  const std::string divides =
      "micro-batches 2 1f1b\nstage a/0=2000 a/1=2000 state=optimizer recompute : h0 a0 h1\n"
      "stage b/0=2000 b/1=2000 state=optimizer recompute : *\n";
  for (const StrategyMove& move :
       {StrategyMove(Recut{GroupOrder::kReversed, CutRule::kBySpeed}),
        StrategyMove(Restage{1, DeviceOrder::kOfCluster, CutRule::kBySpeed, true}),
        StrategyMove(SplitStage{0, 0, false}), StrategyMove(MergeStages{0}),
        StrategyMove(SetShares{1, ShareRule::kEqual})}) {
    const Strategy start = strategy(divides);
    const auto changed = moves_.apply(start, start, move);
    if (!changed) continue;  // equal shares are equal already
    for (const StageSpec& spec : changed->stages) {
      EXPECT_TRUE(spec.state == StateLevel::kOptimizer && spec.recompute)
          << print_move(move, problem_->cluster);
    }
  }
}

TEST_F(AMove, OfWhatIsInFlightIsListedWhereItCanHelp) {
  Strategy start = strategy(kThreeStages);
  const auto listed = [&](int starved) {
    std::vector<std::string> found;
    const MovesFrom all = moves_.all(start, start, starved);
    for (const SetMemory& move : std::get<std::vector<SetMemory>>(all.lists)) {
      if (move.in_flight) found.push_back(print_move(move, problem_->cluster));
    }
    return found;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(listed(kNoStage), Texts{});
  EXPECT_EQ(listed(1), (Texts{"have one more micro-batch in flight in s1",
                              "have one more micro-batch a stage in flight before s2",
                              "have two more micro-batches a stage in flight before s2"}));
  start.stages[0].recompute = kWholeStage;
  EXPECT_EQ(listed(kNoStage),
            (Texts{"keep the activations of s0, have one micro-batch fewer in flight in s0",
                   "keep the activations of s0, have half as many micro-batches in flight in s0"}));
  start.stages[0] = strategy(kThreeStages).stages[0];
  start.stages[0].in_flight = 5;
  EXPECT_EQ(listed(kNoStage), (Texts{"have one micro-batch fewer in flight in s0",
                                     "have one more micro-batch a stage in flight before s2",
                                     "have two more micro-batches a stage in flight before s2",
                                     "have the textbook's micro-batches in flight in all stages"}));
}

TEST_F(AMove, TurnsRecomputationOnAndOff) {
  EXPECT_EQ(after(kTwoStages, SetMemory{1, kWholeStage}),
            "stage a/0=2000 a/1=2000 : h0..h1\n"
            "stage b/0=4000 recompute : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
  EXPECT_EQ(after(kTwoStages, SetMemory{kAllStages, kWholeStage}),
            "stage a/0=2000 a/1=2000 recompute : h0..h1\n"
            "stage b/0=4000 recompute : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
  EXPECT_EQ(after(kTwoStages, SetMemory{kAllStages, Recomputation{}}), "impossible");
}

TEST_F(AMove, ChangesTheSegmentsOfStagesThatRecompute) {
  Strategy start = strategy(kTwoStages);
  const auto listed = [&] {
    std::vector<std::string> texts;
    const MovesFrom all = moves_.all(start, start, kNoStage);
    for (const SetMemory& move : std::get<std::vector<SetMemory>>(all.lists)) {
      const bool changes = move.recompute && move.recompute->segments > 1;
      if (changes) texts.push_back(print_move(move, problem_->cluster));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  const auto again = [](std::string_view what) {
    return "recompute " + std::string(what) + " segments of the activations of s0";
  };
  EXPECT_EQ(listed(), Texts{});
  start.stages[0].recompute = kWholeStage;
  EXPECT_EQ(listed(), (Texts{again("2 of 2"), again("6 of 8"), again("4 of 8"), again("2 of 8")}));
  start.stages[0].recompute = {8, 3};
  EXPECT_EQ(listed(), (Texts{again("10 of 16"), again("3 of 4"), again("6 of 8"), again("4 of 8"),
                             again("7 of 8"), again("3 of 8")}));
  start.stages[0].recompute = {2, 1};
  EXPECT_EQ(listed(), (Texts{again("2 of 4"), again("2 of 2")}));
  EXPECT_EQ(after(kTwoStages, SetMemory{0, Recomputation{2, 1}}),
            "stage a/0=2000 a/1=2000 recompute=1/2 : h0..h1\n"
            "stage b/0=4000 : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
}

TEST_F(AMove, DividesTheStateOfStagesOfSeveralDevices) {
  EXPECT_EQ(after(kTwoStages, SetMemory{0, std::nullopt, StateLevel::kOptimizer}),
            "stage a/0=2000 a/1=2000 state=optimizer : h0..h1\n"
            "stage b/0=4000 : a1..l\n"
            "bucket 0 ring w1 w0\n"
            "bucket 1 ring w2\n");
  EXPECT_EQ(after(kTwoStages, SetMemory{1, std::nullopt, StateLevel::kOptimizer}), "impossible");
}

TEST_F(AMove, ThatDividesGradientsGroupsThemAnew) {
  const std::string start =
      "micro-batches 2 1f1b\nstage a/0=2000 a/1=2000 : h0 a0 h1\nstage b/0=4000 : *\n"
      "bucket 0 ring w1 w0\nbucket 1 ring w2\n";
  const std::string stages =
      "stage a/0=2000 a/1=2000 state=gradients : h0..h1\nstage b/0=4000 : a1..l\n";
  EXPECT_EQ(after(start, SetMemory{0, std::nullopt, StateLevel::kGradients}), stages);
}

TEST(MovesThatDivideUpdates, ChooseAlgorithmsAnew) {
  int differ = 0;
  for (std::int64_t width = 32; width <= 2048; width *= 4) {
    Graph graph = chain(3, width);
    Training training = training_of(graph, 8000);
    training.optimizer.momentum = 0.9;
    const auto problem = *Problem::make(
        std::move(graph),
        cluster_of("kind k memory=16e9 bandwidth=300e9 fp32=7e12\n"
                   "host a k 3 bandwidth=300e9 nic=12e9\nhost b k 1 bandwidth=300e9 nic=12e9\n"),
        training);
    StrategyMoves moves(*problem);
    const auto grouped = [&](const std::string& state) {
      Strategy one = strategy_of(
          "micro-batches 1 1f1b\nstage a/0=2000 a/1=2000 a/2=2000 b/0=2000" + state + " : *\n",
          problem->graph, problem->cluster);
      one.buckets.clear();
      return group_gradients(*problem, std::move(one), 1 << 30);
    };
    const Strategy whole = grouped(""), divided = grouped(" state=optimizer");
    EXPECT_EQ(moves.apply(whole, whole, SetMemory{0, std::nullopt, StateLevel::kOptimizer}),
              divided);
    EXPECT_EQ(moves.apply(divided, divided, SetMemory{0, std::nullopt, StateLevel::kWhole}), whole);
    differ += whole.buckets != divided.buckets ? 1 : 0;
  }
  EXPECT_GT(differ, 0);
}

TEST(MovesOfDividedGradients, AreListedWhereAStageDividesSome) {
  Graph graph = chain(3, 512);
  Training training = training_of(graph, 8000);
  training.optimizer.momentum = 0.9;
  const auto problem = *Problem::make(std::move(graph), fast_and_slow(), training);
  StrategyMoves moves(*problem);
  Strategy start = strategy_of(
      "micro-batches 2 1f1b\nstage a/0=2000 a/1=2000 state=optimizer : h0 a0 h1\n"
      "stage b/0=2000 b/1=2000 state=optimizer : *\n",
      problem->graph, problem->cluster);
  const auto listed = [&] {
    std::vector<std::string> texts;
    const MovesFrom all = moves.all(start, start, kNoStage);
    for (const SetMemory& move : std::get<std::vector<SetMemory>>(all.lists)) {
      const bool one = move.state && !move.recompute && move.stage != kAllStages;
      if (one) texts.push_back(print_move(move, problem->cluster));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(listed(),
            (Texts{"keep the optimizer's state of s0", "keep the optimizer's state of s1"}));
  start.stages[0].state = StateLevel::kGradients;
  EXPECT_EQ(listed(),
            (Texts{"divide the optimizer's state of s0",
                   "divide the optimizer's state and gradients of s1",
                   "keep the optimizer's state of s0", "keep the optimizer's state of s1"}));
}

}  // namespace
}  // namespace agpcs::testing
