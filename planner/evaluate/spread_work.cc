// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/lower_bound.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace agpcs {
namespace {

constexpr int kSweeps = 3;
constexpr int kSections = 48;  // golden sections: down to 1e-10 of the interval

/// Divides the money of kinds `a` and `b`, prices x devices, such that the work's price is largest.
/// The price is a concave function of one number.
void share_money(const SpreadWork& work, std::size_t a, std::size_t b,
                 std::vector<double>& prices) {
  const double money = prices[a] * work.devices[a] + prices[b] * work.devices[b];
  const auto set = [&](double part) {
    prices[a] = part * money / work.devices[a];
    prices[b] = (1 - part) * money / work.devices[b];
    return price_work(work, prices);
  };
  constexpr double kGolden = 0.6180339887498949;
  double low = 0, high = 1;
  double left = high - kGolden, right = low + kGolden;
  double at_left = set(left), at_right = set(right);
  for (int i = 0; i < kSections; ++i) {
    if (at_left < at_right) {
      low = std::exchange(left, right);
      at_left = at_right;
      right = low + kGolden * (high - low);
      at_right = set(right);
    } else {
      high = std::exchange(right, left);
      at_right = at_left;
      left = high - kGolden * (high - low);
      at_left = set(left);
    }
  }
  set(at_left > at_right ? left : right);
}

}  // namespace

double price_work(const SpreadWork& work, const std::vector<double>& prices) {
  const std::size_t kinds = work.devices.size();
  double total = 0;
  for (std::size_t i = 0; i < work.seconds.size(); i += kinds) {
    double least = prices[0] * work.seconds[i];
    for (std::size_t k = 1; k < kinds; ++k) {
      least = std::min(least, prices[k] * work.seconds[i + k]);
    }
    total += least;
  }
  return total;
}

// Starts where all kinds are paid alike for all of the work. Any prices give a bound. For three
// kinds or more the result may fall short of the best, as only two prices change at a time.
std::vector<double> price_kinds(const SpreadWork& work) {
  const std::size_t kinds = work.devices.size();
  std::vector<double> totals(kinds);
  for (std::size_t i = 0; i < work.seconds.size(); ++i) totals[i % kinds] += work.seconds[i];
  double speed = 0;
  for (std::size_t k = 0; k < kinds; ++k) speed += work.devices[k] / std::max(totals[k], 1e-300);
  std::vector<double> prices;
  for (std::size_t k = 0; k < kinds; ++k) {
    prices.push_back(1 / std::max(totals[k], 1e-300) / speed);
  }
  double best = price_work(work, prices);
  const int sweeps = kinds == 2 ? 1 : kSweeps;
  for (int sweep = 0; sweep < sweeps && kinds > 1; ++sweep) {
    for (std::size_t a = 0; a < kinds; ++a) {
      for (std::size_t b = a + 1; b < kinds; ++b) {
        std::vector<double> changed = prices;
        share_money(work, a, b, changed);
        const double now = price_work(work, changed);
        if (now <= best) continue;
        best = now;
        prices = std::move(changed);
      }
    }
  }
  return prices;
}

}  // namespace agpcs
