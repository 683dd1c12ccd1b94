// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/all_skeletons.h"

#include "ir/base/at.h"
#include "tests/bench/planning/small_cases.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace agpcs::testing {
namespace {

constexpr std::int64_t kMost = 4000;  // evaluations

/// Returns up to `most` skeletons, whatever their steps.
std::optional<std::vector<Seed>> skeletons_of(const Problem& problem, std::size_t most) {
  Evaluator evaluator(problem);
  Score none;
  none.lacking = 1;
  ClimbBudget budget{kMost};
  return best_of_all_skeletons(problem, evaluator, none, most, budget);
}

TEST(AllSkeletons, AreStrategiesThatFitTheFastestFirst) {
  std::size_t all = 0;
  for (std::uint64_t seed = 10'000; seed < 10'010; ++seed) {
    const auto problem = bench::tight_problem(seed);
    const auto found = skeletons_of(*problem, 8);
    ASSERT_TRUE(found);
    all += found->size();
    Evaluator evaluator(*problem);
    double last = 0;
    for (const Seed& one : *found) {
      const Status valid =
          verify_strategy(one.strategy, problem->graph, problem->cluster, problem->training.batch);
      ASSERT_TRUE(valid.ok()) << valid.message();
      const Score again = evaluator.evaluate(one.strategy);
      ASSERT_TRUE(again.fits());
      ASSERT_EQ(again.step_seconds, one.score.step_seconds);
      ASSERT_GT(one.score.step_seconds, last);
      last = one.score.step_seconds;
    }
  }
  EXPECT_GT(all, 20U);
}

/// With ample memory: for each cut, one is found that no pipeline of two single devices beats.
TEST(AllSkeletons, LeaveOutNoPipelineOfTwoDevices) {
  const auto problem = problem_of(chain(3, 256), fast_and_slow(), 8);
  const auto found = skeletons_of(*problem, 100'000);
  ASSERT_TRUE(found);
  ASSERT_FALSE(found->empty());
  Evaluator evaluator(*problem);
  const int blocks = problem->blocks.size(), devices = problem->cluster.device_count();
  for (int cut = 1; cut < blocks; ++cut) {
    std::vector<int> stage_of(at(blocks), 0);
    std::fill(stage_of.begin() + cut, stage_of.end(), 1);
    for (DeviceId a = 0; a < devices; ++a) {
      for (DeviceId b = 0; b < devices; ++b) {
        if (a == b) continue;
        Strategy pipeline;
        pipeline.stage_of = stage_of_ops(problem->blocks, stage_of);
        pipeline.stages = {{{a}, {8}}, {{b}, {8}}};
        const Score score = evaluator.evaluate(pipeline);
        EXPECT_TRUE(std::ranges::any_of(*found,
                                        [&](const Seed& one) {
                                          return one.score.step_seconds <= score.step_seconds &&
                                                 one.strategy.stages.size() == 2 &&
                                                 one.strategy.stage_of == pipeline.stage_of;
                                        }))
            << "behind block " << cut << ", devices " << a << " and " << b;
      }
    }
  }
}

TEST(AllSkeletons, OfHostsThatAreAlikeOneIsUsed) {
  const auto problem = problem_of(chain(3, 256),
                                  cluster_of("kind k memory=16e9 bandwidth=900e9 fp32=15e12\n"
                                             "host a k 1 bandwidth=50e9 nic=1e9\n"
                                             "host b k 1 bandwidth=50e9 nic=1e9\n"),
                                  8);
  const auto found = skeletons_of(*problem, 100'000);
  ASSERT_TRUE(found);
  int alone = 0;
  for (const Seed& one : *found) {
    if (one.strategy.stages.size() > 1 || one.strategy.stages.front().devices.size() > 1) continue;
    ++alone;
    EXPECT_EQ(one.strategy.stages.front().devices, std::vector<DeviceId>{1});
  }
  EXPECT_GT(alone, 0);
}

TEST(AllSkeletons, OfALargeProblemAreNotLookedAt) {
  EXPECT_FALSE(skeletons_of(*problem_of(chain(64, 64), fast_and_slow(), 64), 8));
}

TEST(AllSkeletons, AnInterruptEndsThem) {
  const auto problem = bench::tight_problem(10'000);
  Evaluator evaluator(*problem);
  Score none;
  none.lacking = 1;
  const std::atomic<bool> interrupted{true};
  ClimbBudget budget{kMost, &interrupted};
  const auto found = best_of_all_skeletons(*problem, evaluator, none, 8, budget);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->empty());
  EXPECT_TRUE(budget.ended);
  EXPECT_EQ(budget.left, kMost);
}

}  // namespace
}  // namespace agpcs::testing
