// SPDX-License-Identifier: Apache-2.0
// Statistics of repeated training steps that are valid on a device with occasional stalls.
#pragma once

#include "ir/cluster/profile.h"

#include <vector>

namespace agpcs {

/// Rounds a value as profiles hold it: to the digits on which repetitions agree, and a few more.
Measured rounded(const Measured& value);

/// Sums of times and spreads, and their averages.
void add_to(Measured& sum, const Measured& value);
Measured mean_of(const Measured& sum, int count);

/// Returns a value whose time is `factor` times as long.
Measured scaled(const Measured& value, double factor);

/// The times of a training step. All except `wall` are computing seconds
/// (`TorchExecutor::busy_seconds`).
struct TimedStep {
  double wall = 0;  ///< by the clock
  double begin = 0, forward = 0, backward = 0, update = 0;
  double busy() const { return begin + forward + backward + update; }
};

/// Returns how many times longer steps take by the clock than in computing seconds: 1 on an
/// exclusive device, 3.3 under a quota of 30% of a core. A quota lets a step run at full speed or
/// stalls it for several milliseconds, so medians of short times mean nothing. Therefore this is
/// the ratio of sums over all steps. It leaves out blocks of kBlockSeconds in which something else
/// took the device's time: blocks with more than kOutlier times the median ratio. Needs: at least
/// one step.
double stretch(const std::vector<TimedStep>& steps);
inline constexpr double kBlockSeconds = 0.5;
inline constexpr double kOutlier = 1.25;

}  // namespace agpcs
