// SPDX-License-Identifier: Apache-2.0
// What agpcs-run prints: a table that grows by a line a step, and a summary.
#pragma once

#include "ir/median.h"
#include "ir/rng.h"
#include "tools/common.h"

#include <agpcs/plan.h>
#include <agpcs/replayer.h>
#include <agpcs/trainer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Seconds of steps, in bounded memory: all of them, or that many drawn evenly from more.
class StepSeconds {
 public:
  void add(double seconds);
  double median() const { return agpcs::median(kept_); }  ///< Needs: one was added.

 private:
  std::int64_t added_ = 0;
  std::vector<double> kept_;
  Rng rng_{0};
};

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
  std::int64_t steps_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  StepSeconds seconds_;
};

}  // namespace agpcs
