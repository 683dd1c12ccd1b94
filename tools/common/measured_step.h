// SPDX-License-Identifier: Apache-2.0
// A step as ranks measured it: the file that `agpcs-run --trace` writes, and what `agpcs-plan
// drift` says of it.
#pragma once

#include "cost_model/simulator.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Medians over the last steps, and one of these steps: that whose length is the median.
struct MeasuredStep {
  std::int64_t step = 0;   ///< the one of `timeline`
  std::int64_t steps = 0;  ///< that the medians are of
  double step_seconds = 0;
  /// By rank and quantity (agpcs/drift.h), a step.
  std::vector<std::array<double, kQuantityCount>> seconds;
  std::vector<TimelineEvent> timeline;  ///< seconds from the step's start
};

/// A Chrome trace for Perfetto. Of each rank the measured step, and below it the planned one where
/// `planned` (with its timeline) is given. The same bytes for the same inputs.
std::string measured_trace(const Plan& plan, const MeasuredStep& step, const Estimate* planned);

/// Reads the figures of what `measured_trace` wrote, not its timeline. Errors: it is no such file,
/// or of another plan (both digests).
Result<MeasuredStep> read_measured_trace(std::string_view text, std::string_view file,
                                         const Plan& plan);

/// Where `step` departs from what the plan expects: a table, then in words.
std::string drift_text(const Plan& plan, const MeasuredStep& step);
std::string drift_json(const Plan& plan, const MeasuredStep& step);

}  // namespace agpcs
