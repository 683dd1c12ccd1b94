// SPDX-License-Identifier: Apache-2.0
// Replanner: where a running job gets a better plan from. The runtime brings none: agpcs-run
// provides one over the compiler, a user may bring another.
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
  std::int64_t step = 0;                ///< after which it was established
  std::vector<DriftChange> changes;     ///< all that are established
  std::vector<LinkMeasurement> before;  ///< of the links, when training began
  std::vector<LinkMeasurement> now;     ///< the same ones
  /// By rank: seconds of computing over those that the running plan expects, of ranks that did not
  /// change too (`DriftDetector::computing`); empty: not known.
  std::vector<double> computing = {};
  double step_seconds = 0;  ///< measured, median of the last steps
  /// Ranks of the running plan that are gone; not empty: they must not be used.
  std::vector<int> lost_ranks;
};

/// A plan that is better on the hardware as it is now.
struct Replan {
  Plan plan;
  double running_step_seconds = 0;  ///< of the running plan, as simulated on the hardware now
  double step_seconds = 0;          ///< of `plan`
};

class Replanner {
 public:
  virtual ~Replanner() = default;
  /// Called on rank 0, on a thread of its own, while training goes on. `running` is the plan that
  /// runs: a start for the search. Nothing: no plan is better. Ends soon once `cancel` is set.
  /// The new plan has the same model, training and ranks (without lost ones, renumbered). What it
  /// throws counts as an error: training goes on under the plan it has.
  virtual Result<std::optional<Replan>> replan(const Plan& running, const HardwareReport& hardware,
                                               const std::atomic<bool>& cancel) = 0;
};

}  // namespace agpcs
