// SPDX-License-Identifier: Apache-2.0
// Fits the corrections of a quick profile, and says what they are expected to be wrong by.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/cluster/profile.h"

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {

/// Fits the seconds of each group of the device's probes to the group's terms
/// (cost_model/kernel/terms.h), by coefficients that are not negative. `kind` has the figures of
/// the device, if they are known. A pass of a group with fewer than three sizes gets no
/// coefficients. Cost: O(points).
std::vector<Correction> fit_corrections(const DeviceProfile& device, const DeviceKind& kind);

/// How far off the corrections are for operators that were not measured: each shape is left out in
/// turn, with all its numbers of samples, and predicted from the others of its group, or, where it
/// is the only one, from the others of its class.
struct ExpectedError {
  std::string group;
  std::size_t shapes = 0;
  double forward = 0, backward = 0;  ///< medians of |predicted - measured| / measured; -1: no pass
};
struct ExpectedErrors {
  std::vector<ExpectedError> groups;  ///< by name
  double typical = 0;  ///< sum of |predicted - measured| / sum of measured, each with its seconds
  double bias = 0;     ///< sum of predicted / sum of measured - 1, what remains of it in a step
};

/// Cost: O(shapes x points).
ExpectedErrors expected_errors(const DeviceProfile& device, const DeviceKind& kind);

}  // namespace agpcs
