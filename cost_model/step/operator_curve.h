// SPDX-License-Identifier: Apache-2.0
// OperatorCurve: measured seconds of an operator as a function of the number of samples.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace agpcs {

/// Seconds of both passes of an operator.
struct OpSeconds {
  double forward = 0, backward = 0;
  double sum() const { return forward + backward; }
};

/// Lower bounds of the seconds of an operator for 1 to some number of samples: `least_per_sample`
/// bounds seconds / samples, and fixed + per_sample x n bounds the seconds of n samples. Neither
/// falls with n.
struct OpFloor {
  OpSeconds least_per_sample;
  OpSeconds fixed, per_sample;
};

/// What holds of the seconds of an operator for 1 to some number of samples: the least part that
/// the forward pass has of both, and the most that both take.
struct OpRange {
  double forward_part = 0;
  double most_seconds = std::numeric_limits<double>::infinity();
};
/// Returns that of these seconds, and of all on straight lines between them: on a line, the part
/// rises or falls all the way.
OpRange range_of(std::span<const OpSeconds> seconds);

/// Returns the numbers of samples at which a model's curve has points, for up to `batch` samples at
/// a time: 1, 2, 3, 4, 6, 8, 12, 16, ... up to the batch or more, and to at least 64.
std::vector<std::int64_t> modelled_samples(std::int64_t batch);

/// Straight lines through measured points: exact at each point, linear between points. Beyond the
/// last point, the line through the last two continues, but never falls. Before the first point,
/// the line through the first two continues backwards, but not below proportion to the samples,
/// because an operator on fewer samples does not take less for each. Seconds that were not measured
/// at any point stay 0.
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
  /// Returns the lower bounds for 1 to `most` samples. Cost: O(points).
  OpFloor floor(std::int64_t most) const;
  OpRange range(std::int64_t most) const;

 private:
  /// The line that holds from `from` samples on: base + slope x (samples - origin).
  struct Line {
    std::int64_t from = 0, origin = 0;
    OpSeconds base, slope;
  };
  /// Returns where lines between 1 and `most` samples end.
  std::vector<std::int64_t> ends(std::int64_t most) const;

  std::vector<Line> lines_;
};

}  // namespace agpcs
