// SPDX-License-Identifier: Apache-2.0
#include "cost_model/operator_curve.h"

#include "ir/check.h"

#include <algorithm>

namespace agpcs {
namespace {

using Point = OperatorCurve::Point;

OpSeconds slope_of(const Point& a, const Point& b) {
  const auto samples = static_cast<double>(b.samples - a.samples);
  return {(b.seconds.forward - a.seconds.forward) / samples,
          (b.seconds.backward - a.seconds.backward) / samples};
}

/// Never falling, and not below what is proportional to the samples before `at`.
double slope_before(double slope, double seconds, std::int64_t at) {
  return std::clamp(slope, 0.0, seconds / static_cast<double>(at));
}

}  // namespace

OperatorCurve::OperatorCurve(std::span<const Point> points) {
  AGPCS_CHECK(points.size() > 1 && points.front().samples > 0, "{} points", points.size());
  const Point& first = points.front();
  const OpSeconds rise = slope_of(first, points[1]);
  lines_.push_back({0,
                    first.samples,
                    first.seconds,
                    {slope_before(rise.forward, first.seconds.forward, first.samples),
                     slope_before(rise.backward, first.seconds.backward, first.samples)}});
  OpSeconds slope;
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    slope = slope_of(points[i], points[i + 1]);
    lines_.push_back({points[i].samples, points[i].samples, points[i].seconds, slope});
  }
  const Point& last = points.back();
  slope = {std::max(0.0, slope.forward), std::max(0.0, slope.backward)};
  lines_.push_back({last.samples, last.samples, last.seconds, slope});
}

OpSeconds OperatorCurve::at(std::int64_t samples) const {
  const auto after =
      std::upper_bound(lines_.begin() + 1, lines_.end(), samples,
                       [](std::int64_t value, const Line& line) { return value < line.from; });
  const Line& line = *(after - 1);
  const auto on = static_cast<double>(samples - line.origin);
  return {line.base.forward + line.slope.forward * on,
          line.base.backward + line.slope.backward * on};
}

}  // namespace agpcs
