// SPDX-License-Identifier: Apache-2.0
// Calibrate: replaces a cluster's references to profiles by fitted figures, and reports how well
// the fits explain the measurements.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/cluster/profile.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// The quality of a fit: how well it explains its measurements.
struct FitReport {
  std::string
      what;  ///< "convolution forward on v100", "ring all-reduce", "messages from a/0 to b/0"
  bool stands_in = false;  ///< it serves only operators that were not measured
  std::size_t points = 0;
  std::size_t outliers = 0;  ///< points that the robust fit set aside
  double median_error = 0;   ///< |fitted - measured| / measured, over all points
  double worst_error = 0;
  bool explains() const { return median_error <= 0.15; }
};

struct Calibrated {
  Cluster cluster;
  std::vector<FitReport> fits;
  /// Warnings about fits that do not explain their data, ready to print. Fits that only stand in
  /// cause no warning.
  std::string warnings;
};

/// Replaces the figures of every device kind, link and algorithm that refers to a profile by
/// figures fitted to it:
/// - seconds of operators by class (an overhead, seconds per FLOP and per byte, none of them
///   negative; robust to outliers), and of updates; those of a quick profile, by group
///   (corrections.h);
/// - alpha-beta of links;
/// - overhead and stretch of all-reduce algorithms.
/// Figures without a reference stay. Needs: entries that exist (the reader of cluster.yaml checks).
/// Errors: an entry lacks the measurements that a figure needs. Cost: O(measurements).
Result<Calibrated> calibrate(Cluster cluster);

}  // namespace agpcs
