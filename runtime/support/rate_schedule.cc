// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace agpcs {

double RateSchedule::factor(std::int64_t step) const {
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  const std::int64_t since = step - warmup;
  const std::int64_t length = std::max<std::int64_t>(steps - warmup, 1);
  const double t = std::min(1.0, static_cast<double>(since) / static_cast<double>(length));
  switch (shape) {
    case RateShape::kConstant:
      return 1;
    case RateShape::kLinear:
      return 1 + (last - 1) * t;
    case RateShape::kCosine:
      return last + (1 - last) * (1 + std::cos(std::numbers::pi * t)) / 2;
    case RateShape::kStep:
      return std::pow(decay, static_cast<double>(since / every));
  }
  return 1;
}

}  // namespace agpcs
