// SPDX-License-Identifier: Apache-2.0
// What benchmarks that compare methods share: processor time, and means with their 95% intervals.
#pragma once

#include <cmath>
#include <ctime>
#include <span>

namespace agpcs::bench {

/// Seconds of the processor that this process has taken, all its threads.
inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// What 95% of Student's t with `freedom` degrees of freedom lie within. Needs: at least 1.
/// Abramowitz and Stegun, 26.7.5; from 4 degrees on right to 0.1%.
inline double students_t(double freedom) {
  if (freedom < 4) return freedom < 2 ? 12.706 : freedom < 3 ? 4.303 : 3.182;
  constexpr double z = 1.959964, z2 = z * z;
  const double n = freedom;
  const double first = z * (z2 + 1) / 4;
  const double second = z * ((5 * z2 + 16) * z2 + 3) / 96;
  const double third = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
  const double fourth = z * ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160;
  return z + (first + (second + (third + fourth / n) / n) / n) / n;
}

/// A mean and half the width of its 95% interval (Student's t); 0 where there is one value.
struct Interval {
  double mean = 0, half = 0;
};
inline Interval interval(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double v : values) mean += v / count;
  for (const double v : values) squares += (v - mean) * (v - mean);
  if (values.size() < 2) return {mean, 0};
  return {mean, students_t(count - 1) * std::sqrt(squares / (count - 1) / count)};
}

}  // namespace agpcs::bench
