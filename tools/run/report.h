// SPDX-License-Identifier: Apache-2.0
// Prints the output of agpcs-run: a table that gets one line per step, and a summary.
#pragma once

#include "ir/base/median.h"
#include "ir/base/rng.h"
#include "runtime/replay/recording_replayer.h"
#include "tools/common/common.h"
#include "tools/common/json.h"

#include <agpcs/plan.h>
#include <agpcs/replayer.h>
#include <agpcs/trainer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// The seconds of steps in bounded memory: all of them, or a uniform sample if there are too many.
class StepSeconds {
 public:
  void add(double seconds);
  double median() const { return agpcs::median(kept_); }  ///< Needs: one was added.

 private:
  std::int64_t added_ = 0;
  std::vector<double> kept_;
  Rng rng_{0};
};

/// Ranks that a job has lost, and how it goes on.
struct LostRanks {
  std::vector<int> ranks;            ///< of the plan that ran
  std::vector<std::string> devices;  ///< of each of them
  std::string why;                   ///< what ended the ranks
  std::string plan;                  ///< the file of the plan by which the others go on
  std::int64_t step = 0;             ///< the first step that they train
};
/// Prints the event "lost" on `console.out`.
void print_lost(Console console, const LostRanks& lost);

/// Reports on `console.out`. With `json` every line is a JSON object whose "event" is "start",
/// "step", "drift", "proposed", "kept", "switched", "recorded", "resumed", "validated", "saved" or
/// "summary". The starter of ranks prints "lost" (`print_lost`).
class RunReport {
 public:
  /// `tokens`: of a sample; 0 if samples have none. `batches`: of the plan, in a step.
  RunReport(const Plan& plan, bool json, Console console, std::int64_t tokens = 0, int batches = 1);
  void start(std::string_view transport);
  void step(const StepReport& report);
  void event(const TrainerEvent& event);
  void recorded(std::int64_t step, const StepRecording& recording);
  void resumed(const std::string& folder, std::int64_t step);
  /// The job has no step left: it went on from `step` of `steps`.
  void nothing_left(std::int64_t step, std::int64_t steps);
  void validated(std::int64_t step, const Evaluation& evaluation, double seconds);
  void saved(const std::string& folder, std::int64_t step, double seconds, bool best);
  /// `peak_memory_bytes`: of the reporting rank's accelerator; 0: it computes on a CPU.
  void summary(std::int64_t peak_memory_bytes);

 private:
  /// Returns how much longer `seconds` is than the plan expects, as a fraction of the expectation.
  double deviation(double seconds) const { return seconds / expected_seconds_ - 1; }
  double samples_per_second(double seconds) const;

  void print_event(const TrainerEvent& event);
  void print_event_json(const TrainerEvent& event);

  /// Adds samples per second, tokens per second if samples have tokens, and the deviation of a step
  /// of `seconds`.
  Json with_rates(Json json, double seconds) const;

  Plan plan_;  // the running plan
  const std::int64_t tokens_;
  const int batches_;
  const bool json_;
  Console console_;
  double expected_seconds_ = 0;  // of a step, which may have several batches
  std::int64_t steps_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  StepSeconds seconds_;
};

}  // namespace agpcs
