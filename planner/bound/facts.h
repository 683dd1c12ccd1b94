// SPDX-License-Identifier: Apache-2.0
// What all bounds of a problem use.
#pragma once

#include "ir/base/at.h"
#include "planner/problem/problem.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace agpcs {

/// The most that rounding changes in a sum of seconds or prices, as a part of it: sums have fewer
/// than a million terms, none negative, and each addition is off by 2^-53 at most. Bounds are
/// lowered by it, so that they hold to the last bit.
inline constexpr double kBoundRounding = 1e-9;

/// Refers to the problem.
struct BoundFacts {
  explicit BoundFacts(const Problem& problem);

  const Problem& problem;
  const CostTable& costs;
  std::int64_t batch = 0;
  std::vector<std::int64_t> numbers;  ///< numbers of micro-batches, ascending
  /// Of the fewest micro-batches: samples that each has at least, and at most.
  std::int64_t samples = 1, largest = 1;
  std::vector<int> kinds;               ///< those of the devices
  std::vector<GradientSize> gradients;  ///< of the trained parameters that are read
};

/// Counts, by kind, the devices [first, end) with `needed` bytes of memory or more.
std::vector<int> count_devices(const Cluster& cluster, DeviceId first, DeviceId end,
                               std::int64_t needed = 0);

/// Returns the least time in which `counts` devices of each kind take a micro-batch's samples,
/// whole ones, if n samples take seconds(kind, n), which does not fall with n. The bisection
/// returns its lower end, a time in which they take fewer; or `enough` if even that is too short.
/// Infinite without devices.
double least_time(const BoundFacts& facts, const std::vector<int>& counts, double enough,
                  const std::function<double(int kind, std::int64_t samples)>& seconds);

}  // namespace agpcs
