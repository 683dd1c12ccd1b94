// SPDX-License-Identifier: Apache-2.0
// A Replanner gives a running job a better plan. The runtime contains none: agpcs-run provides one
// over the compiler, and a user may provide another.
#pragma once

#include <agpcs/drift.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace agpcs {

/// What a running job knows of its hardware.
struct HardwareReport {
  std::int64_t step = 0;                ///< the next step when the report was made
  std::vector<DriftChange> changes;     ///< all established changes
  std::vector<LinkMeasurement> before;  ///< speed of the links when training began
  std::vector<LinkMeasurement> now;     ///< speed of the same links now
  /// By rank: seconds of computing now over those that the running plan expects; ranks that did not
  /// change are included (`DriftDetector::computing`). Empty: not known.
  std::vector<double> computing = {};
  double step_seconds = 0;  ///< measured; median of the last steps
  /// Ranks of the running plan that are gone and must not be used.
  std::vector<int> lost_ranks;
};

/// The best plan that was found for the hardware as it is now.
struct Replan {
  Plan plan;
  double running_step_seconds = 0;  ///< simulated step of the running plan on the hardware now
  double step_seconds = 0;          ///< simulated step of `plan`
};

class Replanner {
 public:
  virtual ~Replanner() = default;
  /// Returns the best plan found, beginning from `running`, the running plan; whether it is better
  /// by enough, the trainer decides (`SwitchOptions::least_gain`). Returns nothing if there is
  /// nothing to plan for: the hardware is what the running plan was made for. It is called on rank
  /// 0, on a thread of its own, while training goes on, and must end soon once `cancel` is set. The
  /// new plan has the same model, training and ranks (lost ones removed and the rest renumbered).
  /// An exception counts as an error: training goes on under the running plan.
  virtual Result<std::optional<Replan>> replan(const Plan& running, const HardwareReport& hardware,
                                               const std::atomic<bool>& cancel) = 0;
};

}  // namespace agpcs
