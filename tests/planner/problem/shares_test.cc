// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/shares.h"

#include "ir/base/rng.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/stage_timer.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <numeric>

namespace agpcs::testing {
namespace {

using Shares = std::vector<std::int64_t>;

TEST(LargestRemainder, SplitsInProportion) {
  EXPECT_EQ(largest_remainder(12, {3, 1}), (Shares{9, 3}));
  EXPECT_EQ(largest_remainder(10, {1, 1, 1}), (Shares{4, 3, 3}));
  EXPECT_EQ(largest_remainder(10, {5, 3, 2.9}), (Shares{4, 3, 3}));
  EXPECT_EQ(largest_remainder(2, {1, 1, 1, 1}), (Shares{1, 1, 0, 0}));
  EXPECT_EQ(largest_remainder(0, {1, 2}), (Shares{0, 0}));
}

TEST(LargestRemainder, AlwaysSumsToTheTotal) {
  Rng rng(3);
  for (int i = 0; i < 1000; ++i) {
    std::vector<double> weights(1 + rng.below(40));
    for (double& weight : weights) weight = rng.uniform() + 1e-3;
    const auto total = static_cast<std::int64_t>(rng.below(1000000));
    const Shares shares = largest_remainder(total, weights);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), total);
  }
}

TEST(Divisors, AreAllAndAscending) {
  EXPECT_EQ(divisors(12), (Shares{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(divisors(1), (Shares{1}));
  EXPECT_EQ(divisors(49), (Shares{1, 7, 49}));
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

TEST(MicroBatchNumbers, AreDivisorsThatKeepProgramsShort) {
  EXPECT_EQ(micro_batch_numbers(12), (Shares{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(micro_batch_numbers(kMostSamples).back(), kMostMicroBatches);
}

TEST(MicroBatchNumbers, OfABatchWithFewDivisorsHaveMicroBatchesOfTwoSizes) {
  EXPECT_EQ(micro_batch_numbers(7), (Shares{1, 2, 3, 4, 6, 7}));
  EXPECT_EQ(micro_batch_numbers(22), (Shares{1, 2, 3, 4, 6, 8, 11, 22}));
  EXPECT_EQ(micro_batch_numbers(100003).back(), kMostMicroBatches);  // a prime
}

TEST(MicroBatchNumbers, TellBySizeWhetherMicroBatchesAreEqual) {
  for (std::int64_t batch = 1; batch < 5000; ++batch) {
    for (const std::int64_t number : micro_batch_numbers(batch)) {
      ASSERT_LE(number, batch);
      const bool equal = batch % number == 0;
      ASSERT_EQ(batch % largest_micro_batch(batch, number) == 0, equal) << batch << " " << number;
    }
  }
}

TEST(BalancedStage, LeavesASampleToSpareWhereMicroBatchesDiffer) {
  for (const std::int64_t batch : {5, 7, 11, 13, 37, 61, 4093}) {
    const auto problem = problem_of(chain(2, 256), fast_and_slow(), batch);
    StageTimer timer(*problem, all_ops(*problem));
    for (const std::int64_t number : micro_batch_numbers(batch)) {
      const std::int64_t samples = largest_micro_batch(batch, number);
      const StageSpec balanced = balanced_stage(*problem, timer, {0, 1, 2, 3}, samples);
      EXPECT_TRUE(covers(balanced, batch, number)) << batch << " in " << number;
      const StageSpec equal = equal_stage(*problem, {0, 1, 2, 3}, samples);
      EXPECT_TRUE(covers(equal, batch, number)) << batch << " in " << number;
      if (batch % number == 0) {
        EXPECT_EQ(balanced.odd, kNone);
        continue;
      }
      const std::size_t odd = odd_replica(balanced);
      EXPECT_EQ(balanced.devices[odd], balanced.odd);
      EXPECT_GT(balanced.shares[odd], 1);
    }
  }
}

TEST(BalancedStage, GivesFastDevicesMoreSamples) {
  const auto problem = problem_of(chain(4, 2048), fast_and_slow(), 4096);
  StageTimer timer(*problem, all_ops(*problem));
  const StageSpec spec = balanced_stage(*problem, timer, {0, 1, 2, 3}, 4096);
  ASSERT_EQ(spec.shares.size(), 4u);
  EXPECT_EQ(spec.shares[0], spec.shares[1]);
  EXPECT_NEAR(static_cast<double>(spec.shares[0]) / static_cast<double>(spec.shares[2]), 3, 0.1);
  const double fast = timer.seconds(0, spec.shares[0]);
  const double slow = timer.seconds(1, spec.shares[2]);
  EXPECT_NEAR(fast / slow, 1, 0.01);
}

TEST(BalancedStage, LeavesOutDevicesThatWouldOnlyHoldUpTheOthers) {
  const auto problem = problem_of(chain(2, 4096), fast_and_slow(), 2);
  StageTimer timer(*problem, all_ops(*problem));
  const StageSpec spec = balanced_stage(*problem, timer, {0, 1, 2, 3}, 2);
  EXPECT_EQ(spec.devices, (std::vector<DeviceId>{0, 1}));
  EXPECT_EQ(spec.shares, (Shares{1, 1}));
}

TEST(EqualStage, GivesEarlierDevicesTheRest) {
  const auto problem = problem_of(chain(2), fast_and_slow(), 8);
  EXPECT_EQ(equal_stage(*problem, {0, 1, 2}, 8).shares, (Shares{3, 3, 2}));
  EXPECT_EQ(equal_stage(*problem, {0, 1, 2}, 2).devices, (std::vector<DeviceId>{0, 1}));
}

}  // namespace
}  // namespace agpcs::testing
