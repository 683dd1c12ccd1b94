// SPDX-License-Identifier: Apache-2.0
// Calibrate: from a cluster that refers to profiles to one with fitted figures, and how well the
// fits explain what was measured.
#pragma once

#include "ir/cluster.h"
#include "ir/profile.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// How well a fit explains what it was made from.
struct FitReport {
  std::string
      what;  ///< "convolution forward on v100", "ring all-reduce", "messages from a/0 to b/0"
  bool stands_in = false;  ///< it counts only for operators that were not measured
  std::size_t points = 0;
  std::size_t outliers = 0;  ///< points that the robust fit set aside
  double median_error = 0;   ///< of |fitted - measured| / measured, over all points
  double worst_error = 0;
  bool explains() const { return median_error <= 0.15; }
};

struct Calibrated {
  Cluster cluster;
  std::vector<FitReport> fits;
  /// Fits that do not explain their data, those aside that only stand in; ready to print.
  std::string warnings;
};

/// Replaces the figures of every device kind, link and algorithm that refers to a profile by those
/// fitted to it: seconds of operators by class (an overhead, seconds per FLOP and per byte, none of
/// them negative; robust to outliers), of updates, alpha-beta of links, overhead and stretch of
/// all-reduce algorithms. What refers to none stays. Needs: entries that exist (the reader of
/// cluster.yaml checks). Errors: an entry without the measurements that a figure needs.
/// Cost: O(measurements).
Result<Calibrated> calibrate(Cluster cluster);

}  // namespace agpcs
