// SPDX-License-Identifier: Apache-2.0
// A step as ranks measured it: the file that `agpcs-run --trace` writes, and the comparison that
// `agpcs-plan drift` prints.
#pragma once

#include "cost_model/step/simulator.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Medians over the last steps, and one of these steps: the one whose length is nearest to the
/// median.
struct MeasuredStep {
  std::int64_t step = 0;   ///< the step of `timeline`
  std::int64_t steps = 0;  ///< number of steps in the medians
  double step_seconds = 0;
  /// Seconds of a step by rank and quantity (agpcs/drift.h).
  std::vector<std::array<double, kQuantityCount>> seconds;
  std::vector<TimelineEvent> timeline;  ///< seconds from the step's start
};

/// Returns a Chrome trace for Perfetto. For each rank it has the measured step and, below it, the
/// planned one if `planned` (with its timeline) is given. Equal inputs give equal bytes.
std::string measured_trace(const Plan& plan, const MeasuredStep& step, const Estimate* planned);

/// Reads the figures that `measured_trace` wrote, but not its timeline. Errors: the text is not
/// such a file, or belongs to another plan (the message has both digests).
Result<MeasuredStep> read_measured_trace(std::string_view text, std::string_view file,
                                         const Plan& plan);

/// Shows where `step` departs from what the plan expects: a table, then in words.
std::string drift_text(const Plan& plan, const MeasuredStep& step);
std::string drift_json(const Plan& plan, const MeasuredStep& step);

}  // namespace agpcs
