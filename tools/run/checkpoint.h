// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a job: rank 0 gathers what the ranks have learned and writes it; on --resume it
// reads it and hands it out. Other ranks need no access to the folder (docs/checkpoints.md).
#pragma once

#include "frontend/save_model.h"
#include "ir/graph.h"
#include "runtime/checkpoint_folder.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace agpcs {

struct CheckpointOptions {
  std::string folder;  ///< of checkpoints
  int keep = 2;        ///< of them
  std::string model;   ///< the file that is trained
  std::uint64_t seed = 0;
  std::chrono::milliseconds limit{300000};  ///< of any one wait
};

/// Saves a job's checkpoints. Every rank has one.
class CheckpointSaver {
 public:
  /// On rank 0: takes the folder, and lays the saved model out, so that what is wrong is found
  /// before training. `first_step`: that training begins or goes on with, from `resumed` on rank 0.
  static Result<std::unique_ptr<CheckpointSaver>> open(const CheckpointOptions& options,
                                                       const Graph& graph, int rank,
                                                       std::int64_t first_step,
                                                       const FoundCheckpoint* resumed = nullptr);

  /// Saves the state before step `step`. All ranks call it, between two steps. What is there
  /// already, because it was saved or resumed from, is not written again. On failure, which rank 0
  /// names, the transport is aborted, and the checkpoint before this one is whole.
  Status save(const Executor& executor, Transport& transport, const Plan& plan, std::int64_t step);
  /// Whether `save` would have anything to do.
  bool is_due(std::int64_t step) const { return step != last_; }
  /// Of the folder of checkpoints, on rank 0: what stops nothing, a line each.
  std::string take_warnings() { return folder_ ? folder_->take_warnings() : std::string(); }

 private:
  CheckpointSaver(const CheckpointOptions& options, std::int64_t first_step)
      : options_(options), last_(first_step) {}
  Status gather_and_write(const Executor& executor, Transport& transport, const Plan& plan,
                          std::int64_t step);

  CheckpointOptions options_;
  SavedModel model_;                        // rank 0
  std::optional<CheckpointFolder> folder_;  // rank 0
  std::int64_t last_ = 0;                   // the step of the newest checkpoint, or the first step
};

/// Checks that training by `plan` can go on from `checkpoint`: the same model, batch and seed.
/// `seed`: what the user asked for; nothing: the checkpoint's.
Status check_resumable(const FoundCheckpoint& found, const Plan& plan,
                       const std::optional<std::uint64_t>& seed);

/// Gives `executor`, which is prepared for `plan`, its state. All ranks call it; `found` is rank
/// 0's, and nullptr on the others. On failure the transport is aborted.
Status restore_checkpoint(const FoundCheckpoint* found, Executor& executor, Transport& transport,
                          const Plan& plan, std::chrono::milliseconds limit);

}  // namespace agpcs
