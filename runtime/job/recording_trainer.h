// SPDX-License-Identifier: Apache-2.0
// A Trainer that records steps. Not installed.
#pragma once

#include "runtime/replay/recording_replayer.h"

#include <agpcs/trainer.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace agpcs {

struct TrainerRecording {
  int after = 0;  ///< steps of each plan before one is recorded; 0: never
  /// Called on every rank, once a plan if `after` is not 0: steps are replayed, or why not.
  std::function<void(std::int64_t next_step, const StepRecording& recording)> on_decided;
};

/// Does what `Trainer::create` does, and records a step of each plan.
Result<std::unique_ptr<Trainer>> make_recording_trainer(const Plan& plan, int rank,
                                                        Transport& transport,
                                                        ExecutorFactory make_executor,
                                                        const TrainerOptions& options,
                                                        TrainerRecording recording);

}  // namespace agpcs
