// SPDX-License-Identifier: Apache-2.0
// What no grouping of gradients into all-reduces can go below, in whatever order they are sent.
// Stated and proven in docs/design/grouping.md.
#pragma once

#include "planner/evaluate/bucket_schedule.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// Seconds by bytes: straight lines between points, which begin at 0 bytes, ascending, at least
/// two; the last line goes on.
struct CostCurve {
  struct Point {
    std::int64_t bytes = 0;
    double seconds = 0;
  };
  std::vector<Point> points;

  double operator()(std::int64_t bytes) const {
    auto next = std::upper_bound(points.begin() + 1, points.end() - 1, bytes,
                                 [](std::int64_t b, const Point& p) { return b < p.bytes; });
    return line(*(next - 1), *next).of(bytes);
  }

  static CostLine line(const Point& a, const Point& b) {
    const double slope = (b.seconds - a.seconds) / static_cast<double>(b.bytes - a.bytes);
    return {a.seconds - slope * static_cast<double>(a.bytes), slope};
  }
};

/// Lines a + b x with a, b >= 0 that lie nowhere above `curve` on [0, most]: the edges of its lower
/// convex hull, the line from the origin and the level one. `most` > 0.
inline std::vector<CostLine> lines_below(const CostCurve& curve, std::int64_t most) {
  std::vector<CostCurve::Point> hull;
  const auto add = [&](const CostCurve::Point& point) {
    while (hull.size() > 1 && CostCurve::line(hull[hull.size() - 2], hull.back()).per_byte >=
                                  CostCurve::line(hull.back(), point).per_byte) {
      hull.pop_back();
    }
    hull.push_back(point);
  };
  for (const CostCurve::Point& point : curve.points) {
    if (point.bytes < most) add(point);
  }
  add({most, curve(most)});
  CostLine level = {hull[0].seconds, 0};
  CostLine steep = {0, hull[1].seconds / static_cast<double>(hull[1].bytes)};
  std::vector<CostLine> lines;
  for (std::size_t i = 1; i < hull.size(); ++i) {
    const CostLine edge = CostCurve::line(hull[i - 1], hull[i]);
    if (edge.seconds >= 0 && edge.per_byte >= 0) lines.push_back(edge);
    level.seconds = std::min(level.seconds, hull[i].seconds);
    steep.per_byte = std::min(steep.per_byte, hull[i].seconds / static_cast<double>(hull[i].bytes));
  }
  lines.push_back(level);
  lines.push_back(steep);
  return lines;
}

/// No set of all-reduces that carries each gradient once ends earlier. In order of readiness.
inline double earliest_end(std::span<const ReadyGradient> gradients, const CostCurve& curve) {
  std::int64_t total = 0;
  for (const ReadyGradient& gradient : gradients) total += gradient.bytes;
  const std::vector<CostLine> lines = lines_below(curve, std::max<std::int64_t>(total, 1));
  double bound = 0;
  std::int64_t late = 0;  // bytes that are ready now or later
  for (std::size_t i = gradients.size(); i-- > 0;) {
    late += gradients[i].bytes;
    for (const CostLine& line : lines) {
      bound = std::max(bound, gradients[i].ready + line.of(late));
    }
  }
  return bound;
}

}  // namespace agpcs::testing
