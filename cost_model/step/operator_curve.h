// SPDX-License-Identifier: Apache-2.0
// OperatorCurve: measured seconds of an operator as a function of the number of samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// Seconds of both passes of an operator.
struct OpSeconds {
  double forward = 0, backward = 0;
  double sum() const { return forward + backward; }
};

/// What the seconds of an operator are never below for 1 to some number of samples: those for each
/// sample, and those of n samples as a line, fixed + per_sample x n. Neither falls with n.
struct OpFloor {
  OpSeconds least_per_sample;
  OpSeconds fixed, per_sample;
};

/// Straight lines through the points: exact at each, linear in between. Beyond the last, on from
/// the last two, never falling. Before the first, back from the first two, but never less than in
/// proportion to the samples: an operator on fewer samples takes no less for each. Seconds that
/// were not measured at any point stay 0.
class OperatorCurve {
 public:
  struct Point {
    std::int64_t samples = 0;
    OpSeconds seconds;
  };
  /// Needs: at least two points, ascending, of at least one sample.
  explicit OperatorCurve(std::span<const Point> points);

  /// Cost: O(log points).
  OpSeconds at(std::int64_t samples) const;
  /// For 1 to `most` samples. Cost: O(points).
  OpFloor floor(std::int64_t most) const;

 private:
  /// From `from` samples on: base + slope x (samples - origin).
  struct Line {
    std::int64_t from = 0, origin = 0;
    OpSeconds base, slope;
  };
  std::vector<Line> lines_;
};

}  // namespace agpcs
