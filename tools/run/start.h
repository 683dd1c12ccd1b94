// SPDX-License-Identifier: Apache-2.0
// Where training begins and what is saved of it: rank 0 decides, for all ranks.
#pragma once

#include "runtime/checkpoint_folder.h"
#include "tools/common.h"
#include "tools/run_options.h"

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
  std::int64_t save_every = 0;           ///< 0: at the end alone
  std::optional<FoundCheckpoint> found;  ///< rank 0: what training goes on from
};

/// Finds the checkpoint of --resume and checks that training by `plan` can go on from it. What was
/// passed over, and that there is none yet in a folder that is --save's, too, goes to
/// `console.err`.
Result<TrainingStart> find_start(const RunOptions& options, const Plan& plan, Console console);

/// The same on every rank of a job. Only rank 0 looks into folders.
Result<TrainingStart> agree_on_start(const RunOptions& options, const Plan& plan,
                                     Bootstrap& bootstrap, Console console);

}  // namespace agpcs
