// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"

#include <agpcs/digest.h>
#include <agpcs/replayer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

ReplayOptions patient() { return {std::chrono::seconds(60)}; }

class ReplayerOver : public testing::TestWithParam<WorldKind> {
 protected:
  void SetUp() override {
    const std::string obstacle = GetParam().obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << GetParam().name << ": " << obstacle;
  }

  /// Replays three steps, with an evaluation before the last, and compares every rank's parameters
  /// and losses with the reference.
  void expect_equal_to_one_process(const TestPlan& spec, int batches = 1) {
    const Plan plan = make_plan(spec);
    constexpr int kSteps = 3;
    const FakeOutcome expected = fake_reference(plan, kSteps, batches);
    const double evaluation = fake_reference(plan, 1, 2).loss;
    GetParam().run(plan.rank_count(), [&](Transport& transport) {
      FakeExecutor executor;
      executor.batches = batches;
      ReplayOptions options = patient();
      options.batches = batches;
      auto replayer = Replayer::create(plan, transport.rank(), transport, executor, options);
      ASSERT_TRUE(replayer.ok()) << replayer.status().message();
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 == kSteps) {
          const auto evaluated = (*replayer)->evaluate();
          ASSERT_TRUE(evaluated.ok()) << evaluated.status().message();
          EXPECT_EQ(evaluated->loss, evaluation);
        }
        const auto report = (*replayer)->run_step();
        ASSERT_TRUE(report.ok()) << report.status().message();
        EXPECT_EQ(report->step, step);
        EXPECT_GT(report->seconds, 0);
        if (step + 1 < kSteps) continue;
        EXPECT_EQ(report->loss, expected.loss);
      }
      if (spec.level == StateLevel::kParameters) {  // whose passes read what the last step learned
        ASSERT_TRUE((*replayer)->evaluate().ok());
      }
      const int stage = plan.stage_of_rank(transport.rank());
      for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
        if (!plan.buckets[b].is_of(stage)) continue;
        EXPECT_EQ(executor.parameters()[b], expected.parameters[b])
            << "rank " << transport.rank() << ", bucket " << b;
      }
    });
  }

  /// One stage whose ranks divide what `level` says, by each algorithm, and with one owner.
  void expect_equal_in_one_stage(StateLevel level) {
    for (const AllReduce algorithm :
         {AllReduce::kRing, AllReduce::kTree, AllReduce::kHierarchical}) {
      expect_equal_to_one_process({.shares = {{2, 1, 4, 1}},
                                   .cuts = {},
                                   .micro_batches = 3,
                                   .algorithm = algorithm,
                                   .elements = {12, 7},
                                   .weights = {5, 3, 4},
                                   .level = level});
    }
    expect_equal_to_one_process({.shares = {{1, 2, 1}},
                                 .cuts = {},
                                 .elements = {6, 1},
                                 .weights = {0, 1, 0},
                                 .level = level});
  }

  void expect_equal_in_pipelines(StateLevel level) {
    for (const Schedule schedule : {Schedule::k1F1B, Schedule::kGPipe}) {
      expect_equal_to_one_process({.shares = {{2, 2}, {4}, {1, 3}, {0}},
                                   .cuts = {{0, 1, {"a"}}, {1, 2, {"b"}}},
                                   .micro_batches = 5,
                                   .schedule = schedule,
                                   .elements = {9, 2},
                                   .smaller = 2,
                                   .shared = {{0, 2}, {0, 1, 2}, {1, 2}},
                                   .weights = {2, 0, 3, 1},
                                   .level = level});
    }
  }
};

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

// Collects what each rank says when a step fails.
std::vector<Status> failures_of(const WorldKind& world, const Plan& plan, int failing_rank,
                                const std::function<Status(const char*, int)>& trouble,
                                const ReplayOptions& options) {
  std::vector<Status> said(static_cast<std::size_t>(plan.rank_count()));
  world.run(plan.rank_count(), [&](Transport& transport) {
    FakeExecutor executor;
    if (transport.rank() == failing_rank) executor.before = trouble;
    auto replayer = Replayer::create(plan, transport.rank(), transport, executor, options);
    ASSERT_TRUE(replayer.ok()) << replayer.status().message();
    Result<StepReport> report = (*replayer)->run_step();
    if (report.ok()) report = (*replayer)->run_step();
    said[static_cast<std::size_t>(transport.rank())] = report.status();
    EXPECT_EQ((*replayer)->run_step().status().message(), report.status().message());
  });
  return said;
}

TEST_P(ReplayerOver, AnErrorOfOneRankStopsAllAndNamesRankAndInstruction) {
  const Plan plan = make_plan({{{2}, {1, 1}}, {{0, 1, {"a"}}}, 4});
  const auto said = failures_of(
      GetParam(), plan, 2,
      [](const char* what, int mb) {
        if (std::string(what) == "backward" && mb == 3) return internal_error("out of memory");
        return Status();
      },
      patient());
  EXPECT_EQ(said[2].message(), "rank 2 (host1/0): backward mb=3: out of memory");
  EXPECT_EQ(said[2].code(), StatusCode::kInternal);
  for (const int rank : {0, 1}) {
    const Status& status = said[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::kPeerFailed);
    EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(rank) + " (host0/"));
    EXPECT_THAT(status.message(), HasSubstr("rank 2 (host1/0): backward mb=3: out of memory"));
  }
}

TEST_P(ReplayerOver, ARankThatComputesForTooLongIsNamedByTheOneThatWaits) {
  const Plan plan = make_plan({{{2}, {2}}, {{0, 1, {"a"}}}, 2});
  std::latch given_up(1);
  std::vector<Status> said(2);
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    const int rank = transport.rank();
    if (rank == 0) {
      executor.before = [&](const char*, int mb) {
        if (mb == 1) given_up.wait();
        return Status();
      };
    }
    auto replayer = Replayer::create(plan, rank, transport, executor,
                                     {std::chrono::milliseconds(rank == 1 ? 1000 : 60000)});
    ASSERT_TRUE(replayer.ok()) << replayer.status().message();
    said[static_cast<std::size_t>(rank)] = (*replayer)->run_step().status();
    if (rank == 1) given_up.count_down();
  });
  EXPECT_EQ(said[1].code(), StatusCode::kTimeout);
  EXPECT_EQ(said[1].message(),
            "rank 1 (host0/1): recv c0 mb=1: recv from rank 0, 96 bytes: timed out after 1000 ms");
  EXPECT_THAT(said[0].message(), HasSubstr("rank 1 (host0/1): recv c0 mb=1"));
}

TEST_P(ReplayerOver, AnExecutorThatCannotDivideGradientsIsRefusedBeforeTheFirstStep) {
  struct Whole : FakeExecutor {
    Status fill_bucket(int bucket) override { return Executor::fill_bucket(bucket); }
  };
  const Plan plan = make_plan({.shares = {{3, 1}},
                               .cuts = {},
                               .micro_batches = 2,
                               .weights = {1},
                               .level = StateLevel::kGradients});
  GetParam().run(plan.rank_count(), [&](Transport& transport) {
    Whole executor;
    const auto replayer = Replayer::create(plan, transport.rank(), transport, executor, patient());
    ASSERT_FALSE(replayer.ok());
    EXPECT_THAT(replayer.status().message(),
                HasSubstr("divides its gradients among ranks, and the executor cannot sum them "
                          "after each micro-batch\n  hint: a plan made with --without gradients"));
  });
}

TEST_P(ReplayerOver, AnExecutorThatCannotGatherIsRefusedBeforeTheFirstStep) {
  struct Whole : FakeExecutor {
    Status gather_with(ParameterSource& source) override { return Executor::gather_with(source); }
  };
  const Plan plan = make_plan({.shares = {{3, 1}},
                               .cuts = {},
                               .micro_batches = 2,
                               .weights = {1},
                               .level = StateLevel::kParameters});
  GetParam().run(plan.rank_count(), [&](Transport& transport) {
    Whole executor;
    const auto replayer = Replayer::create(plan, transport.rank(), transport, executor, patient());
    ASSERT_FALSE(replayer.ok());
    EXPECT_THAT(replayer.status().message(),
                HasSubstr("divides parameters among ranks, and the executor cannot gather them for "
                          "its passes\n  hint: a plan made with --without parameters"));
  });
}

TEST_P(ReplayerOver, AnExecutorThatCannotDivideStateIsRefusedBeforeTheFirstStep) {
  const Plan plan = make_plan({.shares = {{3, 1}}, .cuts = {}, .micro_batches = 2, .weights = {1}});
  GetParam().run(plan.rank_count(), [&](Transport& transport) {
    FakeExecutor executor;
    executor.divides = false;
    const auto replayer = Replayer::create(plan, transport.rank(), transport, executor, patient());
    ASSERT_FALSE(replayer.ok());
    EXPECT_THAT(replayer.status().message(),
                HasSubstr("divides its state among ranks, and the executor cannot update a part of "
                          "its parameters\n  hint: a plan made with --without state"));
  });
}

TEST_P(ReplayerOver, RanksWithDifferentPlansAreRefusedWithBothDigests) {
  const Plan plan = make_plan({{{1, 1}}, {}, 1});
  Plan other = plan;
  other.training.optimizer.learning_rate = 0.5;
  const std::string first = digest_of(print_plan(plan)), second = digest_of(print_plan(other));
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    const bool is_first = transport.rank() == 0;
    const auto replayer =
        Replayer::create(is_first ? plan : other, transport.rank(), transport, executor, patient());
    ASSERT_FALSE(replayer.ok());
    // It sees so itself, or hears first that the other one has.
    const std::string own = is_first ? "rank 0 (host0/0): rank 1 holds another plan: " + second +
                                           " there, " + first + " here"
                                     : "rank 1 (host0/1): rank 0 holds another plan: " + first +
                                           " there, " + second + " here";
    EXPECT_THAT(
        replayer.status().message(),
        AnyOf(own, AllOf(HasSubstr("holds another plan"), HasSubstr(first), HasSubstr(second))));
  });
}

TEST(Replayer, RefusesAPlanForAnotherNumberOfRanks) {
  const Plan plan = make_plan({{{1, 1}}, {}, 1});
  loopback_world().run(1, [&](Transport& transport) {
    FakeExecutor executor;
    const auto replayer = Replayer::create(plan, 0, transport, executor);
    ASSERT_FALSE(replayer.ok());
    EXPECT_EQ(replayer.status().message(),
              "rank 0 (host0/0): the plan is for 2 ranks, the transport has 1");
  });
}

TEST(Replayer, RefusesAPlanThatDoesNotVerify) {
  Plan plan = make_plan({{{1}}, {}, 1});
  plan.programs[0].instructions.pop_back();
  loopback_world().run(1, [&](Transport& transport) {
    FakeExecutor executor;
    const auto replayer = Replayer::create(plan, 0, transport, executor);
    ASSERT_FALSE(replayer.ok());
    EXPECT_THAT(replayer.status().message(), HasSubstr("'report' is missing"));
  });
}

TEST(Replayer, PassesOnThatTheExecutorCannotPrepare) {
  class Unprepared : public FakeExecutor {
   public:
    Status prepare(const Plan& /*plan*/, int /*rank*/) override {
      return {StatusCode::kUnavailable, "no such device"};
    }
  };
  const Plan plan = make_plan({{{1}}, {}, 1});
  loopback_world().run(1, [&](Transport& transport) {
    Unprepared executor;
    const auto replayer = Replayer::create(plan, 0, transport, executor);
    EXPECT_EQ(replayer.status().message(), "rank 0 (host0/0): no such device");
    EXPECT_EQ(replayer.status().code(), StatusCode::kUnavailable);
  });
}

}  // namespace
}  // namespace agpcs
