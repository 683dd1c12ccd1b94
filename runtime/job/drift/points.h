// SPDX-License-Identifier: Apache-2.0
// One figure of each point of a series.
#pragma once

#include <cstddef>
#include <vector>

namespace agpcs {

/// Returns the figure `of` of the last `count` points, which are at least as many.
template <typename Point>
std::vector<double> last_of(const std::vector<Point>& points, std::size_t count,
                            double Point::*of) {
  std::vector<double> figures;
  for (std::size_t i = points.size() - count; i < points.size(); ++i) {
    figures.push_back(points[i].*of);
  }
  return figures;
}

template <typename Point>
std::vector<double> all_of(const std::vector<Point>& points, double Point::*of) {
  return last_of(points, points.size(), of);
}

/// Returns by how much longer each point's own time is than its processor time.
template <typename Point>
std::vector<double> held_of(const std::vector<Point>& points) {
  std::vector<double> held;
  for (const Point& point : points) held.push_back(point.own - point.processor);
  return held;
}

}  // namespace agpcs
