// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/operator_curve.h"

#include "ir/base/check.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

using Point = OperatorCurve::Point;

OpSeconds slope_of(const Point& a, const Point& b) {
  const auto samples = static_cast<double>(b.samples - a.samples);
  return {(b.seconds.forward - a.seconds.forward) / samples,
          (b.seconds.backward - a.seconds.backward) / samples};
}

/// Limits a slope before the first point: it does not fall, and the line stays at or above
/// proportion to the samples before `at`.
double slope_before(double slope, double seconds, std::int64_t at) {
  return std::clamp(slope, 0.0, seconds / static_cast<double>(at));
}

/// Lowers each part of `low` to that of `other` where that is less.
void lower(OpSeconds& low, const OpSeconds& other) {
  low.forward = std::min(low.forward, other.forward);
  low.backward = std::min(low.backward, other.backward);
}

/// Sets the line of a pass that has the curve's slope from its first to its last end and lies under
/// all of `ends`. If that line is below 0 at no samples, sets the steepest line from 0 under them.
void set_line(const std::vector<std::pair<double, double>>& ends, double least, double& fixed,
              double& per_sample) {
  const auto& [first, low] = ends.front();
  const auto& [last, high] = ends.back();
  per_sample = last > first ? std::max(0.0, (high - low) / (last - first)) : 0;
  fixed = low;
  for (const auto& [samples, seconds] : ends) {
    fixed = std::min(fixed, seconds - per_sample * samples);
  }
  if (fixed >= 0) return;
  fixed = 0;
  per_sample = least;
}

}  // namespace

OpRange range_of(std::span<const OpSeconds> seconds) {
  OpRange range = {1, 0};
  for (const OpSeconds& of : seconds) {
    const double sum = of.sum();
    if (sum > 0) range.forward_part = std::min(range.forward_part, of.forward / sum);
    range.most_seconds = std::max(range.most_seconds, sum);
  }
  return range;
}

std::vector<std::int64_t> modelled_samples(std::int64_t batch) {
  constexpr std::int64_t kLeastLast = 64;
  const std::int64_t last = std::max(batch, kLeastLast);
  std::vector<std::int64_t> numbers = {1};
  for (std::int64_t power = 2; numbers.back() < last; power *= 2) {
    numbers.push_back(power);
    numbers.push_back(power + power / 2);
  }
  return numbers;
}

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

std::vector<std::int64_t> OperatorCurve::ends(std::int64_t most) const {
  std::vector<std::int64_t> ends;
  ends.reserve(lines_.size() + 2);
  ends.push_back(1);
  for (const Line& line : lines_) {
    if (line.from > 1 && line.from < most) ends.push_back(line.from);
  }
  if (most > 1) ends.push_back(most);
  return ends;
}

OpRange OperatorCurve::range(std::int64_t most) const {
  std::vector<OpSeconds> seconds;
  for (const std::int64_t samples : ends(most)) seconds.push_back(at(samples));
  return range_of(seconds);
}

// On a straight line, (a + b n) / n rises or falls all the way, so its least value is at an end.
// The same holds for the difference of two lines.
OpFloor OperatorCurve::floor(std::int64_t most) const {
  std::vector<std::pair<double, double>> forward, backward;  // samples, seconds
  const std::vector<std::int64_t> ends = this->ends(most);
  forward.reserve(ends.size());
  backward.reserve(ends.size());
  for (const std::int64_t samples : ends) {
    const OpSeconds seconds = at(samples);
    forward.emplace_back(samples, seconds.forward);
    backward.emplace_back(samples, seconds.backward);
  }
  OpFloor floor;
  floor.least_per_sample = at(1);
  for (std::size_t i = 0; i < forward.size(); ++i) {
    const double samples = forward[i].first;
    lower(floor.least_per_sample, {forward[i].second / samples, backward[i].second / samples});
  }
  set_line(forward, floor.least_per_sample.forward, floor.fixed.forward, floor.per_sample.forward);
  set_line(backward, floor.least_per_sample.backward, floor.fixed.backward,
           floor.per_sample.backward);
  return floor;
}

}  // namespace agpcs
