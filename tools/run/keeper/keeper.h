// SPDX-License-Identifier: Apache-2.0
// --elastic under a launcher: each process that the launcher starts is the keeper of one rank.
#pragma once

#include "tools/common/common.h"
#include "tools/run/options.h"
#include "tools/run/processes/launch.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Starts the rank of `place` as a child and watches over it. The keepers meet at the keeper of
/// rank 0, on the port after the job's (for port 65535, the one before). That keeper gives the
/// orders.
///
/// When ranks are lost (they or their keepers are killed or stopped), the keeper of rank 0 plans
/// for the devices of the others. The keepers of these start their ranks again from the last
/// checkpoint. This repeats as often as necessary while a rank is left. The keeper of a lost rank
/// waits for the end of the job.
///
/// Returns the status of the job, which is the same on all keepers: ok, or what ended it: a rank
/// that failed by itself, or the loss of rank 0's keeper. No rank outlives this call or this
/// process. Needs --replan, and a folder for --save that all ranks see.
Status run_keeper(const Plan& plan, const RunOptions& options, const RankPlace& place,
                  Console console);

}  // namespace agpcs
