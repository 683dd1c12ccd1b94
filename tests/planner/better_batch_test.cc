// SPDX-License-Identifier: Apache-2.0
#include "planner/better_batch.h"

#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

namespace agpcs::testing {
namespace {

/// What is known to be lost with `batch` samples; the plan is made without a search.
std::optional<BetterBatch> better(std::int64_t batch, const char* memory,
                                  const ProblemOptions& wanted = {}) {
  const auto problem = problem_of(chain(8, 1024), fast_and_slow(memory), batch, wanted);
  const auto planned = plan_problem(*problem, {});
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  return better_batch(*problem, {}, planned->best.estimate.step_seconds).value();
}

TEST(DividesWell, AsksForADivisorNearEachPowerOfTwo) {
  for (const std::int64_t batch :
       {1,  2,  3,   4,   6,   8,   10,  12,  20,  24,  30,   32,   48,   60,
        64, 96, 100, 120, 128, 192, 250, 256, 300, 512, 1000, 1024, 4092, 4096}) {
    EXPECT_TRUE(divides_well(batch)) << batch;
  }
  for (const std::int64_t batch : {5, 7, 22, 34, 97, 509, 514, 4093, 4094, 100003}) {
    EXPECT_FALSE(divides_well(batch)) << batch;
  }
}

TEST(DividesWell, NearBatchesAreTheNearestThatDo) {
  const auto near = [](std::int64_t batch) {
    const NearBatches found = near_batches(batch);
    return std::pair(found.below, found.above);
  };
  EXPECT_EQ(near(4093), std::pair(std::int64_t{4092}, std::int64_t{4095}));
  EXPECT_EQ(near(5), std::pair(std::int64_t{4}, std::int64_t{6}));
  EXPECT_EQ(near(kMostSamples).second, 0);
  EXPECT_EQ(near(1).first, 0);
}

TEST(BetterBatch, IsFoundWhereMemoryAsksForMicroBatches) {
  const std::optional<BetterBatch> found = better(4093, "130e6");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->batch, 4092);
  EXPECT_EQ(found->near.above, 4095);
  const auto at_best = plan_problem(*problem_of(chain(8, 1024), fast_and_slow("130e6"), 4092), {});
  EXPECT_EQ(found->step_seconds, at_best->best.estimate.step_seconds);
}

TEST(BetterBatch, IsFoundWhereNothingFitsTheBatch) {
  const auto problem = problem_of(chain(8, 1024), fast_and_slow("130e6"), 4093);
  const auto found = better_batch(*problem, {}, std::nullopt).value();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->batch, 4092);
  const auto never = problem_of(chain(8, 1024), fast_and_slow("5e6"), 4093);
  EXPECT_FALSE(better_batch(*never, {}, std::nullopt).value().has_value());
}

TEST(BetterBatch, IsNotAskedForWhereOneMicroBatchIsFine) {
  EXPECT_FALSE(better(4093, "16e9").has_value());
}

TEST(BetterBatch, IsNotAskedForWhereTheBatchDividesWell) {
  EXPECT_FALSE(better(4092, "130e6").has_value());
}

TEST(BetterBatch, IsNotAskedForWhereTheNumberWasGiven) {
  ProblemOptions wanted;
  wanted.micro_batches = 4093;
  EXPECT_FALSE(better(4093, "130e6", wanted).has_value());
}

}  // namespace
}  // namespace agpcs::testing
