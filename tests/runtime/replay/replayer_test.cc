// SPDX-License-Identifier: Apache-2.0
// Ranks that replay a plan learn what one process learns.
#include "tests/runtime/replay/replayer_over.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(All, ReplayerOver,
                         testing::Values(loopback_world(), tcp_world(), gloo_world()),
                         [](const auto& world) { return world.param.name; });

TEST_P(ReplayerOver, OneRankAlone) { expect_equal_to_one_process({{{4}}, {}, 2}); }

TEST_P(ReplayerOver, DataParallelWithSharesThreeToOne) {
  expect_equal_to_one_process({{{3, 1}}, {}, 2});
}

TEST_P(ReplayerOver, StepsOfSeveralBatches) {
  expect_equal_to_one_process({{{3, 1}}, {}, 2}, 3);
  expect_equal_to_one_process({{{2, 2}, {1, 2, 1}}, {{0, 1, {"a"}}}, 4}, 2);
}

TEST_P(ReplayerOver, DataParallelByTreeOverTwoHosts) {
  expect_equal_to_one_process({{{2, 1, 4, 1}}, {}, 1, Schedule::k1F1B, AllReduce::kTree});
}

TEST_P(ReplayerOver, DataParallelHierarchicalOverTwoHosts) {
  expect_equal_to_one_process({{{2, 1, 4, 1}}, {}, 1, Schedule::k1F1B, AllReduce::kHierarchical});
}

TEST_P(ReplayerOver, DataParallelByFlows) {
  expect_equal_to_one_process({{{2, 1, 4, 1}}, {}, 2, Schedule::k1F1B, AllReduce::kFlow});
}

TEST_P(ReplayerOver, TwoStagesOfReplicasByFlows) {
  expect_equal_to_one_process(
      {{{2, 2}, {1, 2, 1}}, {{0, 1, {"a"}}}, 2, Schedule::k1F1B, AllReduce::kFlow});
}

TEST_P(ReplayerOver, TwoStages) { expect_equal_to_one_process({{{4}, {4}}, {{0, 1, {"a"}}}, 4}); }

TEST_P(ReplayerOver, ExecutorsLearnWhatHasLeft) {
  const Plan plan = make_plan({{{4}, {4}}, {{0, 1, {"a"}}}, 4});
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    auto replayer = Replayer::create(plan, transport.rank(), transport, executor, patient());
    ASSERT_TRUE(replayer.ok()) << replayer.status().message();
    for (int step = 0; step < 2; ++step) {
      const auto report = (*replayer)->run_step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      if (transport.rank() != 0) continue;
      std::vector<InstructionId> activations;
      for (int mb = 0; mb < 4; ++mb) activations.push_back({Opcode::kSend, 0, mb});
      EXPECT_EQ(executor.told_sent, activations) << "their gradients came back";
    }
  });
}

TEST_P(ReplayerOver, FourStagesOneForwardOneBackward) {
  expect_equal_to_one_process(
      {{{2}, {2}, {2}, {2}}, {{0, 1, {"a"}}, {1, 2, {"b"}}, {2, 3, {"c"}}}, 8});
}

TEST_P(ReplayerOver, FourStagesAllForwardsFirst) {
  expect_equal_to_one_process(
      {{{2}, {2}, {2}, {2}}, {{0, 1, {"a"}}, {1, 2, {"b"}}, {2, 3, {"c"}}}, 5, Schedule::kGPipe});
}

TEST_P(ReplayerOver, PartedBackwardPasses) {
  expect_equal_to_one_process({{{2}, {2}, {2}, {2}},
                               {{0, 1, {"a"}}, {1, 2, {"b"}}, {2, 3, {"c"}}},
                               6,
                               Schedule::kZeroBubble});
  for (const std::vector<std::int64_t>& weights : {std::vector<std::int64_t>{}, {3, 0, 1}}) {
    expect_equal_to_one_process({.shares = {{3, 1}, {4}, {2, 2}},
                                 .cuts = {{0, 1, {"a", "A"}}, {0, 2, {"c"}}, {1, 2, {"b", "!d"}}},
                                 .micro_batches = 5,
                                 .schedule = Schedule::kZeroBubble,
                                 .smaller = 2,
                                 .shared = {{0, 2}},
                                 .weights = weights});
  }
  expect_equal_to_one_process({.shares = {{2, 2}, {1, 2, 1}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 4,
                               .schedule = Schedule::kZeroBubble},
                              2);
}

TEST_P(ReplayerOver, StagesWithOtherNumbersInFlightThanTheTextbooks) {
  expect_equal_to_one_process(
      {.shares = {{4}, {4}}, .cuts = {{0, 1, {"a"}}}, .micro_batches = 6, .in_flight = {3, 1}});
  for (const std::vector<int>& in_flight :
       {std::vector<int>{5, 3, 1}, {4, 4, 4}, {2, 1, 1}, {1, 1, 1}}) {
    expect_equal_to_one_process({.shares = {{3, 1}, {4}, {2, 2}},
                                 .cuts = {{0, 1, {"a"}}, {0, 2, {"c"}}, {1, 2, {"b", "!d"}}},
                                 .micro_batches = 7,
                                 .in_flight = in_flight});
  }
}

TEST_P(ReplayerOver, TwoStagesOfTwoReplicasWithDifferentShares) {
  expect_equal_to_one_process({{{3, 1}, {1, 3}}, {{0, 1, {"a"}}}, 3});
}

TEST_P(ReplayerOver, MicroBatchesOfTwoSizes) {  // batches of 29, 23 and 25 samples
  expect_equal_to_one_process({.shares = {{3, 2}}, .cuts = {}, .micro_batches = 6, .smaller = 1});
  expect_equal_to_one_process(
      {.shares = {{3, 2}, {4, 1}}, .cuts = {{0, 1, {"a", "A"}}}, .micro_batches = 5, .smaller = 2});
  expect_equal_to_one_process({.shares = {{1, 4}, {3, 2}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 6,
                               .schedule = Schedule::kGPipe,
                               .smaller = 5});
}

TEST_P(ReplayerOver, OneReplicaFeedsThreeAndBack) {
  expect_equal_to_one_process({{{6}, {1, 3, 2}, {4, 2}}, {{0, 1, {"a"}}, {1, 2, {"b"}}}, 3});
}

TEST_P(ReplayerOver, StagesThatShareABucketSumItOverTheRanksOfAll) {
  expect_equal_to_one_process(
      {.shares = {{4}, {4}}, .cuts = {{0, 1, {"a"}}}, .micro_batches = 4, .shared = {{0, 1}}});
  for (const AllReduce algorithm : {AllReduce::kRing, AllReduce::kTree, AllReduce::kHierarchical}) {
    expect_equal_to_one_process({.shares = {{3, 1}, {1, 3}},
                                 .cuts = {{0, 1, {"a"}}},
                                 .micro_batches = 3,
                                 .algorithm = algorithm,
                                 .shared = {{0, 1}}});
  }
}

TEST_P(ReplayerOver, SetsOfStagesThatShareBucketsOverlap) {
  expect_equal_to_one_process({.shares = {{2, 2}, {4}, {1, 3}},
                               .cuts = {{0, 1, {"a"}}, {1, 2, {"b"}}},
                               .micro_batches = 4,
                               .algorithm = AllReduce::kFlow,
                               .shared = {{0, 2}, {0, 1, 2}, {1, 2}, {0, 2}}});
}

TEST_P(ReplayerOver, GradientsAreClippedByTheNormOfAll) {
  const std::vector<std::vector<std::int64_t>> pipeline = {{3, 1}, {4}, {0}};
  for (const double max_norm : {1.0, 1e12}) {
    expect_equal_to_one_process({.shares = {{4}}, .cuts = {}, .max_norm = max_norm});
    expect_equal_to_one_process({.shares = {{1, 2, 1}}, .cuts = {}, .max_norm = max_norm}, 2);
    expect_equal_to_one_process({.shares = pipeline,
                                 .cuts = {{0, 1, {"a"}}},
                                 .micro_batches = 3,
                                 .shared = {{0, 1}},
                                 .max_norm = max_norm});
    for (const StateLevel level : kDividingLevels) {
      expect_equal_to_one_process({.shares = pipeline,
                                   .cuts = {{0, 1, {"a"}}},
                                   .micro_batches = 3,
                                   .weights = {1, 3},
                                   .level = level,
                                   .max_norm = max_norm});
    }
  }
}

TEST_P(ReplayerOver, AnExecutorThatCannotClipIsRefused) {
  const Plan plan = make_plan({.shares = {{1, 1}}, .cuts = {}, .max_norm = 1});
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    executor.clips = false;
    const auto replayer = Replayer::create(plan, transport.rank(), transport, executor, patient());
    EXPECT_THAT(replayer.status().message(),
                HasSubstr("the executor cannot clip gradients\n"
                          "  hint: a plan without max_norm in cluster.yaml"));
  });
}

TEST_P(ReplayerOver, IdleRanksHearOfTheLoss) {
  expect_equal_to_one_process({{{3, 1}, {0, 0}}, {}, 2});
  expect_equal_to_one_process({{{2, 2}, {4}, {0}}, {{0, 1, {"a"}}}, 3});
}

TEST_P(ReplayerOver, ACutThatSkipsAStage) {
  expect_equal_to_one_process(
      {{{2, 2}, {4}, {1, 3}}, {{0, 1, {"a"}}, {0, 2, {"a", "s"}}, {1, 2, {"b"}}}, 4});
}

TEST_P(ReplayerOver, TensorsOfAllSamplesAndTensorsWithoutGradient) {
  expect_equal_to_one_process({{{3, 1}, {1, 1, 2}}, {{0, 1, {"a", "!m", "W", "!K"}}}, 3});
}

TEST_P(ReplayerOver, ACutThroughWhichNoGradientReturns) {
  expect_equal_to_one_process({{{2}, {2}, {2}}, {{0, 1, {"a"}}, {0, 2, {"!m"}}, {1, 2, {"b"}}}, 4});
}

TEST_P(ReplayerOver, EachRankUpdatesItsPartOfDividedState) {
  for (const AllReduce algorithm : {AllReduce::kRing, AllReduce::kTree, AllReduce::kHierarchical}) {
    expect_equal_to_one_process({.shares = {{2, 1, 4, 1}},
                                 .cuts = {},
                                 .micro_batches = 2,
                                 .algorithm = algorithm,
                                 .elements = {12, 7},
                                 .weights = {5, 3, 4}});
  }
  expect_equal_to_one_process(  // ranks that own nothing, and one that owns all
      {.shares = {{1, 2, 1}}, .cuts = {}, .elements = {6, 1}, .weights = {0, 1, 0}});
}

TEST_P(ReplayerOver, DividedStateInPipelinesWithSharedBuckets) {
  expect_equal_to_one_process({.shares = {{3, 1}, {1, 3}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 3,
                               .elements = {9, 2},
                               .shared = {{0, 1}},
                               .weights = {1, 3}});
  expect_equal_to_one_process({.shares = {{2, 2}, {4}, {1, 3}, {0}},
                               .cuts = {{0, 1, {"a"}}, {1, 2, {"b"}}},
                               .micro_batches = 4,
                               .shared = {{0, 2}, {0, 1, 2}, {1, 2}},
                               .weights = {2, 0, 3, 1}});
}

TEST_P(ReplayerOver, DividedStateBesideBucketsWithFlows) {
  expect_equal_to_one_process({.shares = {{2, 2}, {1, 2, 1}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 2,
                               .algorithm = AllReduce::kFlow,
                               .shared = {{0, 1}},
                               .weights = {1, 2}});
}

TEST_P(ReplayerOver, DividedStateInStepsOfSeveralBatches) {
  expect_equal_to_one_process({.shares = {{2, 2}, {1, 2, 1}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 4,
                               .weights = {3, 1}},
                              2);
}

/// The buckets of a stage share the memory in which they are summed, so a sum that begins before
/// the one before it is kept, or is kept twice or not at all, changes the result.
TEST_P(ReplayerOver, EachRankSumsItsPartOfDividedGradientsAfterEachMicroBatch) {
  expect_equal_in_one_stage(StateLevel::kGradients);
}

TEST_P(ReplayerOver, DividedGradientsInPipelinesWithSharedBuckets) {
  expect_equal_in_pipelines(StateLevel::kGradients);
}

/// The executor's memory of a pass holds no numbers but those that were gathered for it.
TEST_P(ReplayerOver, EachPassGathersTheParametersThatRanksDivide) {
  expect_equal_in_one_stage(StateLevel::kParameters);
}

TEST_P(ReplayerOver, DividedParametersInPipelinesWithSharedBuckets) {
  expect_equal_in_pipelines(StateLevel::kParameters);
}

TEST_P(ReplayerOver, DividedParametersInStepsOfSeveralBatches) {
  expect_equal_to_one_process({.shares = {{2, 2}, {1, 2, 1}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 4,
                               .weights = {3, 1},
                               .level = StateLevel::kParameters},
                              2);
}

TEST_P(ReplayerOver, DividedGradientsInStepsOfSeveralBatches) {
  expect_equal_to_one_process({.shares = {{2, 2}, {1, 2, 1}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 4,
                               .weights = {3, 1},
                               .level = StateLevel::kGradients},
                              2);
}

/// A backward pass waits within for the sum of one bucket when it has filled the next. The sum of a
/// shared bucket waits for the first stage, and that for this pass: between the two, all would
/// wait.
TEST(DividedGradients, NoSumForWhichOtherStagesDoMoreComesBetweenThem) {
  Plan plan = make_plan({.shares = {{2, 2}, {1, 3}},
                         .cuts = {{0, 1, {"a"}}},
                         .micro_batches = 2,
                         .shared = {{0, 1}},
                         .weights = {1, 3},
                         .level = StateLevel::kGradients});
  ASSERT_EQ(verify_plan(plan).message(), "");
  std::vector<Instruction>& program = plan.programs[1].instructions;
  const auto of = [&](int micro_batch) {
    return std::find_if(program.begin(), program.end(), [&](const Instruction& instruction) {
      return instruction.id.opcode == Opcode::kReduceScatter &&
             instruction.id.micro_batch == micro_batch;
    });
  };
  const auto first = of(1), shared = of(-1);
  ASSERT_TRUE(first < shared && shared != program.end());
  const InstructionId last = {Opcode::kReduceScatter, first->id.object + 1, 1};
  std::rotate(first, shared, shared + 1);
  for (Instruction& instruction : program) {
    if (instruction.id.opcode == Opcode::kUpdate) instruction.after = {last};
  }
  EXPECT_THAT(verify_plan(plan).message(),
              HasSubstr("the ranks would wait for each other forever"));
}

}  // namespace
}  // namespace agpcs
