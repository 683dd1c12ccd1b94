// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/runtime/fake_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"

#include <agpcs/replayer.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace agpcs {

inline ReplayOptions patient() { return {std::chrono::seconds(60)}; }

/// Tests of the replayer over each transport.
class ReplayerOver : public OverWorld {
 protected:
  /// Compares what a rank holds with what one process has learned.
  using Compare = std::function<void(int rank, const FakeExecutor&, const FakeOutcome&)>;

  /// Replays three steps, with an evaluation before the last, and compares every rank's losses, and
  /// what `compare` looks at, with the reference.
  void replay_beside_one_process(const Plan& plan, int batches, const Compare& compare) {
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
      // Passes over divided parameters read what the last step learned.
      const auto divides = [](const PlanBucket& bucket) { return bucket.divides_parameters(); };
      if (std::any_of(plan.buckets.begin(), plan.buckets.end(), divides)) {
        ASSERT_TRUE((*replayer)->evaluate().ok());
      }
      compare(transport.rank(), executor, expected);
    });
  }

  /// Compares the parameters of every rank's stage.
  void expect_equal_to_one_process(const TestPlan& spec, int batches = 1) {
    const Plan plan = make_plan(spec);
    replay_beside_one_process(
        plan, batches, [&](int rank, const FakeExecutor& executor, const FakeOutcome& expected) {
          for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
            if (!plan.buckets[b].is_of(plan.stage_of_rank(rank))) continue;
            EXPECT_EQ(executor.parameters()[b], expected.parameters[b])
                << "rank " << rank << ", bucket " << b;
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

}  // namespace agpcs
