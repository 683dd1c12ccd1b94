// SPDX-License-Identifier: Apache-2.0
// Interleaved plans, over every transport: ranks compute several stages, and train what one process
// trains.
#include "codegen/stage_program.h"
#include "codegen/timetable.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tests/runtime/replay/replayer_over.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

/// Writes the programs that the compiler writes, and those of idle ranks.
void write_programs(Plan& plan) {
  const Timetable timetable(plan,
                            std::vector<std::int64_t>(plan.stages.size(), plan.micro_batches));
  for (int stage = 0; stage < plan.round_size(); ++stage) {
    plan.programs.push_back(stage_program(plan, timetable, stage));
  }
  if (!plan.stages.back().idle()) return;
  Program& idle = plan.programs.emplace_back(Program{static_cast<int>(plan.stages.size()) - 1, {}});
  if (plan.training.optimizer.clips()) idle.instructions.push_back({{Opcode::kNorm, -1, -1}, {}});
  idle.instructions.push_back({{Opcode::kReport, -1, -1}, {}});
}

/// A chain of `each` stages on each of the sets of ranks that `round` has the shares of.
TestPlan interleaved(const std::vector<std::vector<std::int64_t>>& round, std::size_t each,
                     int micro_batches) {
  TestPlan spec;
  spec.micro_batches = micro_batches;
  spec.schedule = Schedule::kInterleaved;
  spec.round = round.size();
  spec.write_programs = write_programs;
  for (std::size_t s = 0; s < each * round.size(); ++s) {
    spec.shares.push_back(round[s % round.size()]);
    if (s == 0) continue;
    const int stage = static_cast<int>(s);
    spec.cuts.push_back({stage - 1, stage, {fmt::format("t{}", s)}});
  }
  return spec;
}

class InterleavedOver : public ReplayerOver {
 protected:
  /// Compares the parameters of all stages of every rank.
  void expect_equal_to_one_process(const TestPlan& spec, int batches = 1) {
    const Plan plan = make_plan(spec);
    ASSERT_TRUE(plan.interleaves());
    replay_beside_one_process(
        plan, batches, [&](int rank, const FakeExecutor& executor, const FakeOutcome& expected) {
          std::size_t compared = 0;
          for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
            if (!holds(plan, rank, plan.buckets[b])) continue;
            ++compared;
            EXPECT_EQ(executor.parameters()[b], expected.parameters[b])
                << "rank " << rank << ", bucket " << b;
          }
          const bool idle = plan.stage_of_rank(rank) >= working_stages(plan);
          EXPECT_GE(compared, idle ? 0 : 2 * stages_of_rank(plan, rank).size());
        });
  }
};

INSTANTIATE_TEST_SUITE_P(All, InterleavedOver,
                         ::testing::Values(loopback_world(), tcp_world(), gloo_world()),
                         [](const auto& world) { return world.param.name; });

TEST_P(InterleavedOver, TwoToFourRanksOfTwoAndThreeStages) {
  for (const std::size_t ranks : {2U, 3U, 4U}) {
    for (const std::size_t each : {2U, 3U}) {
      for (const int micro_batches : {1, 2, 3, 5, 8}) {
        SCOPED_TRACE(fmt::format("{} x {}, {} micro-batches", ranks, each, micro_batches));
        const std::vector<std::vector<std::int64_t>> round(ranks, {2});
        expect_equal_to_one_process(interleaved(round, each, micro_batches));
      }
    }
  }
}

TEST_P(InterleavedOver, StagesOfReplicasWithUnequalShares) {
  for (const AllReduce algorithm :
       {AllReduce::kRing, AllReduce::kTree, AllReduce::kHierarchical, AllReduce::kFlow}) {
    TestPlan spec = interleaved({{3, 1}, {1, 2, 1}}, 2, 5);
    spec.algorithm = algorithm;
    expect_equal_to_one_process(spec);
  }
  expect_equal_to_one_process(interleaved({{2, 2}, {4}}, 3, 4));
}

TEST_P(InterleavedOver, MicroBatchesOfTwoSizes) {
  TestPlan spec = interleaved({{3, 2}, {4, 1}}, 2, 5);
  spec.smaller = 2;
  expect_equal_to_one_process(spec);
}

TEST_P(InterleavedOver, TensorsOfAllSamplesAndTensorsThatSkip) {
  TestPlan spec = interleaved({{3, 1}, {4}, {2, 2}}, 2, 4);
  spec.cuts[1].tensors = {"t2", "!m", "W", "!K"};
  spec.cuts.insert(spec.cuts.begin() + 1, {0, 2, {"s", "!n"}});
  spec.cuts.insert(spec.cuts.begin() + 2, {0, 5, {"u", "!n"}});
  expect_equal_to_one_process(spec);
}

TEST_P(InterleavedOver, TensorsThatSkipToStagesOfTheSameRanks) {
  for (const auto& [ranks, each] : {std::pair(2, 2), std::pair(3, 2), std::pair(2, 3)}) {
    SCOPED_TRACE(fmt::format("{} x {}", ranks, each));
    TestPlan spec = interleaved(std::vector<std::vector<std::int64_t>>(ranks, {2, 1}), each, 5);
    spec.cuts.clear();
    for (int from = 0; from + 1 < ranks * each; ++from) {
      spec.cuts.push_back({from, from + 1, {fmt::format("t{}", from + 1)}});
      for (int to = from + 2; to < ranks * each; ++to) {
        const bool local = to == from + ranks;
        if (from == 0) {  // as of a mask; and of all samples, with a gradient and without
          spec.cuts.push_back({0, to, {"!n", "W", "!K"}});
        } else if (local) {
          spec.cuts.push_back({from, to, {fmt::format("u{}", to), fmt::format("V{}", to)}});
        }
      }
    }
    const Plan plan = make_plan(spec);
    EXPECT_GE(std::count_if(plan.cuts.begin(), plan.cuts.end(),
                            [&](const Cut& cut) { return is_local(plan, cut); }),
              2);
    expect_equal_to_one_process(spec);
    expect_equal_to_one_process(spec, 2);
    spec.smaller = 2;
    expect_equal_to_one_process(spec);
  }
}

TEST_P(InterleavedOver, StagesOfUnlikeRanksShareBuckets) {
  TestPlan spec = interleaved({{3, 1}, {1, 3}}, 2, 3);
  spec.shared = {{0, 3}, {2, 3}, {0, 1}};
  expect_equal_to_one_process(spec);
}

TEST_P(InterleavedOver, RanksDivideWhatTheOptimizerRemembers) {
  TestPlan spec = interleaved({{3, 1}, {1, 3}}, 2, 3);
  spec.shared = {{1, 2}};
  spec.weights = {1, 3};
  expect_equal_to_one_process(spec);
}

TEST_P(InterleavedOver, GradientsAreClippedByTheNormOfAll) {
  for (const double max_norm : {1.0, 1e12}) {
    TestPlan spec = interleaved({{3, 1}, {4}}, 2, 4);
    spec.shares.push_back({0});
    spec.max_norm = max_norm;
    spec.shared = {{0, 3}};
    expect_equal_to_one_process(spec);
  }
}

TEST_P(InterleavedOver, StepsOfSeveralBatches) {
  expect_equal_to_one_process(interleaved({{2, 2}, {3, 1}}, 2, 3), 2);
}

TEST_P(InterleavedOver, AnExecutorOfOneStageIsRefused) {
  const Plan plan = make_plan(interleaved({{2}, {2}}, 2, 2));
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    executor.has_several = false;
    const auto replayer =
        Replayer::create(plan, transport.rank(), transport, executor, {std::chrono::seconds(60)});
    EXPECT_THAT(replayer.status().message(),
                HasSubstr("the executor computes one stage on each rank\n"
                          "  hint: a plan whose schedule is not interleaved"));
  });
}

TEST_P(InterleavedOver, AnErrorNamesTheStageOfItsPass) {
  const Plan plan = make_plan(interleaved({{2}, {2}}, 2, 3));
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    int backward = 0;
    executor.before = [&](const char* what, int) {
      const bool fails = transport.rank() == 1 && what == std::string("backward");
      return fails && ++backward == 4 ? invalid_input("no memory") : Status();
    };
    auto replayer =
        Replayer::create(plan, transport.rank(), transport, executor, {std::chrono::seconds(60)});
    ASSERT_TRUE(replayer.ok()) << replayer.status().message();
    EXPECT_THAT((*replayer)->run_step().status().message(),
                HasSubstr("rank 1 (host0/1): backward s1 mb=0: no memory"));
  });
}

}  // namespace
}  // namespace agpcs
