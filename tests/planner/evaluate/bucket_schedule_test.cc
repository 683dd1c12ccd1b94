// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/bucket_schedule.h"

#include "ir/base/rng.h"
#include "tests/planner/evaluate/random_strategies.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace agpcs::testing {
namespace {

using Gradients = std::vector<ReadyGradient>;
using Lines = std::vector<CostLine>;

/// Of all contiguous groupings: the earliest end, and the fewest buckets that reach it.
struct Best {
  double end = std::numeric_limits<double>::infinity();
  std::size_t buckets = 0;
};

template <typename Seconds>
Best exhaustive(const Gradients& gradients, const Seconds& seconds) {
  Best best;
  const auto cuts = gradients.size() - 1;
  for (std::uint32_t mask = 0; mask < std::uint32_t{1} << cuts; ++mask) {
    BucketCounts counts = {1};
    bool mixed = false;
    for (std::size_t i = 0; i < cuts; ++i) {
      if ((mask >> i & 1) != 0) {
        counts.push_back(1);
      } else {
        ++counts.back();
        mixed = mixed || gradients[i].type != gradients[i + 1].type;
      }
    }
    if (mixed) continue;
    const double end = end_of_buckets(gradients, counts, seconds);
    const double slack = 1e-12 * std::abs(end);
    if (end > best.end + slack) continue;
    if (end < best.end - slack || counts.size() < best.buckets) best.buckets = counts.size();
    best.end = std::min(best.end, end);
  }
  return best;
}

Gradients random_gradients(Rng& rng, int types) {
  Gradients gradients;
  double ready = 0;
  for (int i = between(rng, 1, 9); i > 0; --i) {
    ready += between(rng, 0, 20);
    gradients.push_back({ready, between(rng, 0, 12), between(rng, 1, types)});
  }
  return gradients;
}

TEST(BucketSchedule, EndsFirstWithFewestBucketsOfAllContiguousGroupings) {
  Rng rng(1);
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    const Gradients gradients = random_gradients(rng, i % 3 == 0 ? 2 : 1);
    Lines lines;
    for (int l = between(rng, 1, 3); l > 0; --l) {
      lines.push_back({static_cast<double>(between(rng, 0, 20)), between(rng, 0, 12) / 4.0});
    }
    const auto seconds = [&](std::int64_t bytes) { return seconds_of(lines, bytes); };
    const BucketCounts counts = schedule_buckets(gradients, lines);
    const Best best = exhaustive(gradients, seconds);
    EXPECT_NEAR(end_of_buckets(gradients, counts, seconds), best.end, 1e-9) << i;
    EXPECT_EQ(counts.size(), best.buckets) << i;
    EXPECT_EQ(schedule_buckets_of(gradients, seconds).size(), best.buckets) << i;
  }
}

TEST(BucketSchedule, IsExactForCostsThatFallAndJump) {
  Rng rng(2);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    const Gradients gradients = random_gradients(rng, 1);
    std::vector<double> table;
    for (int b = 0; b <= 200; ++b) table.push_back(between(rng, 1, 60));
    const auto seconds = [&](std::int64_t bytes) { return table[static_cast<std::size_t>(bytes)]; };
    const BucketCounts counts = schedule_buckets_of(gradients, seconds);
    EXPECT_NEAR(end_of_buckets(gradients, counts, seconds), exhaustive(gradients, seconds).end,
                1e-9);
  }
}

TEST(BucketSchedule, IsAsEarlyOnLinesAsForAnyCostWithManyGradients) {
  Rng rng(3);
  for (int i = 0; i < 20; ++i) {
    Gradients gradients;
    double ready = 0;
    for (int g = 0; g < 400; ++g) {
      ready += between(rng, 0, 2000) * 1e-6;
      gradients.push_back({ready, between(rng, 1, 4'000'000), g / 150});
    }
    const Lines lines = {{20e-6 * between(rng, 0, 9), 1e-9 / between(rng, 1, 8)}, {1e-3, 1e-10}};
    const auto seconds = [&](std::int64_t bytes) { return seconds_of(lines, bytes); };
    const BucketCounts fast = schedule_buckets(gradients, lines);
    const BucketCounts slow = schedule_buckets_of(gradients, seconds);
    const double end = end_of_buckets(gradients, slow, seconds);
    EXPECT_NEAR(end_of_buckets(gradients, fast, seconds), end, 1e-9 * end);
    EXPECT_EQ(fast.size(), slow.size());
  }
}

TEST(BucketSchedule, MergesWhatCostsNothingAndLeavesTheLastSmall) {
  const Lines lines = {{1, 1}};
  const Gradients gradients = {{0, 1, 0}, {10, 1, 0}, {20, 1, 0}, {30, 1, 0}};
  EXPECT_EQ(schedule_buckets(gradients, lines), (BucketCounts{3, 1}));
}

TEST(BucketSchedule, WithoutTimeOneBucketOfEachTypeIsEnough) {
  const Lines nothing = {{0, 0}};
  EXPECT_EQ(schedule_buckets(Gradients{{0, 1, 0}, {1, 5, 0}, {2, 1, 0}}, nothing),
            (BucketCounts{3}));
  EXPECT_EQ(schedule_buckets(Gradients{{0, 1, 0}, {1, 5, 1}, {2, 1, 1}}, nothing),
            (BucketCounts{1, 2}));
  EXPECT_EQ(schedule_buckets(Gradients{}, nothing), BucketCounts());
}

}  // namespace
}  // namespace agpcs::testing
