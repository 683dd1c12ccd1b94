// SPDX-License-Identifier: Apache-2.0
// Decides where training begins and what it saves: rank 0 decides for all ranks.
#pragma once

#include "runtime/job/checkpoint_folder.h"
#include "tools/common/common.h"
#include "tools/run/options.h"

#include <agpcs/bootstrap.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <optional>

namespace agpcs {

struct TrainingStart {
  std::int64_t step = 0;
  std::uint64_t seed = 0;
  bool saves = false;
  std::int64_t save_every = 0;           ///< 0: only at the end
  std::optional<BestResult> best;        ///< of the job's validations so far, for --keep-best
  std::optional<FoundCheckpoint> found;  ///< on rank 0: the checkpoint that training goes on from
};

/// Finds the checkpoint of --resume and checks that training by `plan` can go on from it. Reports
/// on `console.err` which checkpoints it passed over. If --resume is also the folder of --save and
/// has no checkpoint yet, it reports that training begins at step 0.
Result<TrainingStart> find_start(const RunOptions& options, const Plan& plan, Console console);

/// Does the same on every rank of a job. Only rank 0 looks into folders.
Result<TrainingStart> agree_on_start(const RunOptions& options, const Plan& plan,
                                     Bootstrap& bootstrap, Console console);

}  // namespace agpcs
