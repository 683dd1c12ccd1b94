// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a job. Rank 0 gathers what the ranks have learned and writes it. On --resume, rank
// 0 reads it and distributes it. The other ranks need no access to the folder
// (docs/reference/checkpoints.md).
#pragma once

#include "frontend/save_model.h"
#include "ir/graph/graph.h"
#include "runtime/job/checkpoint_folder.h"

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
  std::string folder;  ///< the folder of checkpoints
  int keep = 2;        ///< the number of checkpoints to keep
  std::string model;   ///< the model's file
  std::uint64_t seed = 0;
  std::chrono::milliseconds limit{300000};  ///< limit of each single wait
  int accumulate = 1;                       ///< batches of the plan in a step
};

/// Saves a job's checkpoints. Every rank has one.
class CheckpointSaver {
 public:
  /// On rank 0, takes possession of the folder and lays out the saved model, so that errors show
  /// before training. `first_step` is the step that training begins at, or goes on with from
  /// `resumed` on rank 0.
  static Result<std::unique_ptr<CheckpointSaver>> open(const CheckpointOptions& options,
                                                       const Graph& graph, int rank,
                                                       std::int64_t first_step,
                                                       const FoundCheckpoint* resumed = nullptr);

  /// Saves the state before step `step`. All ranks call it, between two steps. A state that was
  /// saved or resumed from already is not written again. The checkpoint of `best` is kept. On
  /// failure, the status on rank 0 names it, the transport is aborted, and the checkpoint before
  /// this one is still complete.
  Status save(const Executor& executor, Transport& transport, const Plan& plan, std::int64_t step,
              const std::optional<BestResult>& best = {});
  /// Tells whether `save` would have anything to do.
  bool is_due(std::int64_t step) const { return step != last_; }
  /// Takes the folder's warnings on rank 0: problems that stop nothing, one per line.
  std::string take_warnings() { return folder_ ? folder_->take_warnings() : std::string(); }

 private:
  CheckpointSaver(const CheckpointOptions& options, std::int64_t first_step)
      : options_(options), last_(first_step) {}
  Status gather_and_write(const Executor& executor, Transport& transport, const Plan& plan,
                          std::int64_t step, const std::optional<BestResult>& best);

  CheckpointOptions options_;
  SavedModel model_;                        // rank 0
  std::optional<CheckpointFolder> folder_;  // rank 0
  std::int64_t last_ = 0;                   // the step of the newest checkpoint, or the first step
};

/// Checks that training by `plan`, `accumulate` batches a step, can go on from the checkpoint
/// `found`: the model, the samples of a step and the seed must be the same. `seed` is the one that
/// the user asked for; if absent, the checkpoint's is used.
Status check_resumable(const FoundCheckpoint& found, const Plan& plan, int accumulate,
                       const std::optional<std::uint64_t>& seed);

/// Restores the state of `executor`, which is prepared for its plan. All ranks call it. `found` is
/// the checkpoint on rank 0, which is resumable, and nullptr on the others. On failure the
/// transport is aborted.
Status restore_checkpoint(const FoundCheckpoint* found, Executor& executor, Transport& transport,
                          std::chrono::milliseconds limit);

}  // namespace agpcs
