// SPDX-License-Identifier: Apache-2.0
// What agpcs-run prints: a table that grows by a line a step, and a summary.
#pragma once

#include "tools/common.h"

#include <agpcs/plan.h>
#include <agpcs/replayer.h>
#include <agpcs/trainer.h>

#include <string>
#include <vector>

namespace agpcs {

/// Reports on `console.out`. With `json` every line is a JSON object: "start", "step", "drift",
/// "proposed", "kept", "switched", "resumed", "saved" and "summary" by its "event".
class RunReport {
 public:
  RunReport(const Plan& plan, bool json, Console console);
  void start(const std::string& transport);
  void step(const StepReport& report);
  void event(const TrainerEvent& event);
  void resumed(const std::string& folder, std::int64_t step);
  void saved(const std::string& folder, std::int64_t step, double seconds);
  void summary();

 private:
  /// How much longer `seconds` is than the plan expects, as a fraction.
  double deviation(double seconds) const { return seconds / expected_seconds_ - 1; }
  double samples_per_second(double seconds) const;

  void print_event(const TrainerEvent& event);
  void print_event_json(const TrainerEvent& event);

  Plan plan_;  // that runs
  const bool json_;
  Console console_;
  double expected_seconds_ = 0;
  std::vector<double> seconds_, losses_;
};

}  // namespace agpcs
