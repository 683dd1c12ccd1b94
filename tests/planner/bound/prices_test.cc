// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/prices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

/// Items, each of which takes seconds[item][kind] on one of devices[kind] devices.
struct Work {
  std::vector<double> devices;
  std::vector<std::vector<double>> seconds;

  /// The seconds of all devices of each kind if each item goes where it costs least.
  std::vector<double> cheapest(const std::vector<double>& money) const {
    std::vector<double> load(devices.size());
    for (const std::vector<double>& item : seconds) {
      std::size_t best = 0;
      for (std::size_t k = 1; k < devices.size(); ++k) {
        if (money[k] * item[k] / devices[k] < money[best] * item[best] / devices[best]) best = k;
      }
      load[best] += item[best] / devices[best];
    }
    return load;
  }

  /// What all items cost at the prices that are found.
  double price() const {
    const std::vector<double> start(devices.size(), 1.0 / static_cast<double>(devices.size()));
    const auto least = [&](const std::vector<double>& money) { return cheapest(money); };
    const std::vector<double> money = best_money(start, 100, least);
    const std::vector<double> load = cheapest(money);
    double price = 0, sum = 0;
    for (std::size_t k = 0; k < load.size(); ++k) {
      price += money[k] * load[k];
      sum += money[k];
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    return price;
  }
};

// One device of kind 0 and two of kind 1. All of item 0 on kind 0 takes 6, item 1 on kind 1 takes
// 1.5. In T seconds: a part x of item 0 on kind 0, 6 x = T; the rest and item 1 on kind 1: 12 (1 -
// x) + 3 = 2 T. So x = 5/8, T = 3.75.
TEST(Prices, AreThoseOfTheDivisionByHand) {
  EXPECT_NEAR((Work{{1, 2}, {{6, 12}, {6, 3}}}.price()), 3.75, 1e-4);
}

// Three items that each kind alone does in 1 second and the others in 9.
TEST(Prices, OfThreeKindsAreThoseOfEachOnItsOwn) {
  EXPECT_NEAR((Work{{1, 1, 1}, {{1, 9, 9}, {9, 1, 9}, {9, 9, 1}}}.price()), 1, 1e-4);
}

// Kind 1 is never used, so it is free.
TEST(Prices, OfWhatIsNotUsedUpAreZero) {
  EXPECT_NEAR((Work{{1, 1}, {{2, 1e9}, {3, 1e9}}}.price()), 5, 1e-4);
}

TEST(Prices, OfItemsThatTakeNoTimeAreTheFirst) { EXPECT_EQ((Work{{1, 1}, {{0, 0}}}.price()), 0); }

}  // namespace
}  // namespace agpcs
