// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/coordination/control_messages.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;

constexpr ControlShape kShapes[] = {ControlShape::kStar, ControlShape::kTree, ControlShape::kBinary,
                                    ControlShape::kRing};

/// A message of b bytes: 2 + b / 2 at each end, 10 between.
constexpr ControlCosts kCosts = {10, 2, 0.5, 0, 0};

double gather(ControlShape shape, const ControlCosts& costs, std::vector<double> ready,
              std::vector<std::int64_t> bytes) {
  ControlTraffic traffic;
  return gather_to_first(shape, costs, ready, bytes, traffic);
}

std::vector<double> spread(ControlShape shape, const ControlCosts& costs, std::size_t ranks,
                           std::int64_t bytes) {
  std::vector<double> arrived(ranks);
  ControlTraffic traffic;
  spread_from_first(shape, costs, 100, bytes, arrived, traffic);
  return arrived;
}

TEST(ControlMessages, ARankHandlesOneMessageAtATime) {
  // Rank 1: out at 4, there at 14, read at 18. Rank 2: out at 5, there at 15, read from 18 on.
  EXPECT_EQ(gather(ControlShape::kStar, kCosts, {0, 0, 0}, {0, 4, 6}), 23);
  // Rank 2's is there before it is read, and rank 0 itself begins at 40.
  EXPECT_EQ(gather(ControlShape::kStar, kCosts, {40, 0, 0}, {0, 4, 6}), 40 + 4 + 5);
}

TEST(ControlMessages, InnerRanksPassOnWhatCame) {
  // Rank 3: out at 3, at rank 2 at 13, read at 16. Rank 2, 4 bytes: out at 20, read at 34.
  EXPECT_EQ(gather(ControlShape::kTree, kCosts, {0, 0, 0, 0}, {2, 2, 2, 2}), 34);
  // 3 to 2 as above, 2 to 1 as above, 1 to 0 with 6 bytes: 34 + 5, + 10, + 5.
  EXPECT_EQ(gather(ControlShape::kRing, kCosts, {0, 0, 0, 0}, {2, 2, 2, 2}), 54);
}

TEST(ControlMessages, EveryRankButTheFirstIsTheChildOfOne) {
  for (const ControlShape shape : kShapes) {
    for (const int ranks : {1, 2, 13, 64}) {
      std::vector<int> all = {0};
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<int> children = children_of(shape, rank, ranks);
        all.insert(all.end(), children.begin(), children.end());
      }
      std::sort(all.begin(), all.end());
      std::vector<int> expected(static_cast<std::size_t>(ranks));
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected) << name_of(shape);
    }
  }
  EXPECT_THAT(children_of(ControlShape::kTree, 4, 16), ElementsAre(5, 6));
  EXPECT_THAT(children_of(ControlShape::kBinary, 2, 16), ElementsAre(5, 6));
}

TEST(ControlMessages, CombinedBytesDoNotGrowOnTheWay) {
  const std::vector<double> ready(4, 0.0);
  ControlTraffic traffic;
  EXPECT_EQ(combine_to_first(ControlShape::kTree, kCosts, ready, 2, traffic), 32);
  EXPECT_EQ(traffic.messages, 3);
  EXPECT_EQ(traffic.bytes, 6);
}

TEST(ControlMessages, RankZeroTellsAllOthers) {
  // Out after 3 each, 10 on the way, 3 to read.
  EXPECT_THAT(spread(ControlShape::kStar, kCosts, 3, 2), ElementsAre(106, 119, 116));
  EXPECT_THAT(spread(ControlShape::kTree, kCosts, 4, 2), ElementsAre(106, 119, 119, 132));
  EXPECT_THAT(spread(ControlShape::kBinary, kCosts, 4, 2), ElementsAre(106, 122, 116, 135));
  EXPECT_THAT(spread(ControlShape::kRing, kCosts, 3, 2), ElementsAre(103, 119, 132));
}

TEST(ControlMessages, SharedProcessorsTakeTheSumOfWhatOccupiesRanks) {
  ControlCosts costs = kCosts;
  costs.processors = 1;
  costs.latency = 0;
  // Three messages of 2 bytes each occupy two ranks for 3 each: 18. With own processors: 3 + 3 + 3.
  EXPECT_EQ(gather(ControlShape::kStar, costs, {5, 5, 5, 5}, {2, 2, 2, 2}), 5 + 18);
  EXPECT_THAT(spread(ControlShape::kStar, costs, 4, 2), ElementsAre(115, 118, 115, 112));
}

TEST(ControlMessages, EveryOtherRankSendsAndIsToldOnce) {
  for (const ControlShape shape : kShapes) {
    for (const std::size_t ranks : {1U, 2U, 7U, 16U, 100U}) {
      std::vector<double> times(ranks, 0.0);
      ControlTraffic traffic;
      gather_to_first(shape, kCosts, times, std::vector<std::int64_t>(ranks, 3), traffic);
      EXPECT_EQ(traffic.messages, static_cast<std::int64_t>(ranks) - 1) << name_of(shape);
      spread_from_first(shape, kCosts, 1, 5, times, traffic);
      EXPECT_EQ(traffic.messages, 2 * (static_cast<std::int64_t>(ranks) - 1)) << name_of(shape);
      for (std::size_t r = 1; r < ranks; ++r) EXPECT_GE(times[r], 1 + 2 * 4.5 + 10);
    }
  }
}

/// With latency alone: a star's does not grow, a tree's is that of its depth, a ring's of its
/// length.
TEST(ControlMessages, GrowWithRanksAsTheirShapeSays) {
  const ControlCosts latency = {1, 0, 0, 0, 0};
  const ControlCosts message = {0, 1, 0, 0, 0};
  for (const auto& [ranks, depth] : {std::pair(2, 1), {4, 2}, {64, 6}, {1024, 10}, {16'384, 14}}) {
    const auto n = static_cast<std::size_t>(ranks);
    const std::vector<double> ready(n, 0.0);
    const std::vector<std::int64_t> bytes(n, 0);
    EXPECT_EQ(gather(ControlShape::kStar, latency, ready, bytes), 1);
    EXPECT_EQ(gather(ControlShape::kTree, latency, ready, bytes), depth);
    EXPECT_EQ(gather(ControlShape::kRing, latency, ready, bytes), ranks - 1);
    EXPECT_EQ(gather(ControlShape::kStar, message, ready, bytes), ranks);
    EXPECT_EQ(gather(ControlShape::kTree, message, ready, bytes), 2 * depth);
  }
}

}  // namespace
}  // namespace agpcs
