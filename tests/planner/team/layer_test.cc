// SPDX-License-Identifier: Apache-2.0
#include "planner/team/layer.h"

#include "ir/base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace agpcs {
namespace {

TEST(FrontierLayer, NumbersStatesAsTheyComeOneForEachKey) {
  Rng rng(11);
  for (const std::size_t size : {0, 1, 3, 9}) {
    FrontierLayer layer(size);
    std::map<std::vector<std::uint16_t>, std::size_t> known;
    for (int i = 0; i < 2000; ++i) {
      std::vector<std::uint16_t> key(size);
      for (std::uint16_t& number : key) number = static_cast<std::uint16_t>(rng.below(4));
      const double seconds = rng.uniform();
      const auto [number, added] = known.try_emplace(key, known.size());
      const auto [state, is_new] = layer.add(key, seconds);
      EXPECT_EQ(state, number->second);
      EXPECT_EQ(is_new, added);
      EXPECT_TRUE(std::ranges::equal(layer.key(state), key));
      if (added) {
        EXPECT_EQ(layer.seconds(state), seconds);
      }
    }
    EXPECT_EQ(layer.size(), known.size());
  }
}

}  // namespace
}  // namespace agpcs
