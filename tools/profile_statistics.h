// SPDX-License-Identifier: Apache-2.0
// Statistics of repeated training steps that hold on a device that is stalled now and then.
#pragma once

#include "ir/profile.h"

#include <vector>

namespace agpcs {

/// As profiles have it: as many digits as repetitions agree on, and a few more.
Measured rounded(const Measured& value);

/// Sums of times and spreads, and what they are on average.
void add_to(Measured& sum, const Measured& value);
Measured mean_of(const Measured& sum, int count);

/// A value as many times longer.
Measured scaled(const Measured& value, double factor);

/// What a training step took. All but `wall` are computing seconds (`TorchExecutor::busy_seconds`).
struct TimedStep {
  double wall = 0;  ///< by the clock
  double begin = 0, forward = 0, backward = 0, update = 0;
  double busy() const { return begin + forward + backward + update; }
};

/// How many times longer steps take by the clock than computing: 1 on a device of one's own, 3.3
/// under a quota of 30% of a core. A quota lets a step run at full speed or stalls it for several
/// milliseconds, so that medians of short times say nothing; this is therefore the ratio of sums
/// over all steps, less blocks of kBlockSeconds of them in which something else took the device's
/// time: more than kOutlier times the median block. Needs: at least one step.
double stretch(const std::vector<TimedStep>& steps);
inline constexpr double kBlockSeconds = 0.5;
inline constexpr double kOutlier = 1.25;

}  // namespace agpcs
