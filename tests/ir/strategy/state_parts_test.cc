// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/state_parts.h"

#include "ir/base/rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;

std::int64_t sum_of(const std::vector<std::int64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}

TEST(StateParts, FollowSpeedWhereThereIsRoom) {
  const std::vector<StateOwner> owners = {{900, 1000}, {300, 1000}};
  EXPECT_THAT(divide_state(400, owners), ElementsAre(300, 100));
}

TEST(StateParts, ThoseWithoutRoomLeaveTheirPartToOthers) {
  const std::vector<StateOwner> owners = {{900, 100}, {300, 1000}, {300, -50}};
  EXPECT_THAT(divide_state(400, owners), ElementsAre(100, 300, 0));
}

TEST(StateParts, AllLackEquallyMuchWhereThereIsNotEnoughRoom) {
  const std::vector<StateOwner> owners = {{900, 100}, {300, 200}};
  EXPECT_THAT(divide_state(400, owners), ElementsAre(150, 250));
}

TEST(StateParts, ABucketIsCutInProportion) {
  EXPECT_THAT(bucket_parts(10, std::vector<std::int64_t>{300, 100}), ElementsAre(8, 2));
  EXPECT_THAT(bucket_parts(3, std::vector<std::int64_t>{0, 5, 0}), ElementsAre(0, 3, 0));
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_THAT(bucket_parts(large, std::vector<std::int64_t>{large, large}),
              ElementsAre(large / 2, large / 2));
}

/// All elements have one owner, and nobody has more than it has room for if there is room for all.
TEST(StateParts, SumUpWhateverTheOwners) {
  Rng rng(3);
  for (int round = 0; round < 2000; ++round) {
    const auto count = 1 + rng.below(9);
    std::vector<StateOwner> owners;
    std::int64_t room = 0;
    for (std::size_t i = 0; i < count; ++i) {
      owners.push_back({1 + static_cast<double>(rng.below(50)),
                        static_cast<std::int64_t>(rng.below(2000)) - 300});
      room += std::max<std::int64_t>(0, owners.back().room);
    }
    const auto elements = static_cast<std::int64_t>(rng.below(6000));
    const std::vector<std::int64_t> owned = divide_state(elements, owners);
    ASSERT_EQ(sum_of(owned), elements);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_GE(owned[i], 0);
      if (room < elements) continue;
      // What rounding leaves is less than an element for each owner.
      ASSERT_LT(owned[i],
                std::max<std::int64_t>(0, owners[i].room) + static_cast<std::int64_t>(count) + 1);
    }
    const auto of_bucket = static_cast<std::int64_t>(rng.below(500));
    const std::vector<std::int64_t> parts = bucket_parts(of_bucket, owned);
    ASSERT_EQ(sum_of(parts), of_bucket);
    ASSERT_GE(*std::min_element(parts.begin(), parts.end()), 0);
  }
}

TEST(StateParts, CountWhatTheOptimizerKeeps) {
  Optimizer adam;
  adam.kind = OptimizerKind::kAdam;
  EXPECT_EQ(state_bytes(adam, DType::kFp32), 8);
  EXPECT_EQ(state_bytes(adam, DType::kBf16), 12);
  EXPECT_EQ(state_bytes(Optimizer(), DType::kFp32), 0);
  Optimizer momentum;
  momentum.momentum = 0.9;
  EXPECT_EQ(state_bytes(momentum, DType::kFp32), 4);
}

}  // namespace
}  // namespace agpcs
