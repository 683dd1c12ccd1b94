// SPDX-License-Identifier: Apache-2.0
// --elastic under a launcher: each process that it starts is the keeper of one rank.
#pragma once

#include "tools/common.h"
#include "tools/run_launch.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Starts the rank of `place` as a child, and keeps watch over it. The keepers meet at that of rank
/// 0, on the port after the job's, which gives the orders. Where ranks are lost (killed, or
/// stopped, or their keepers are), it plans for the devices of the others, and these start their
/// ranks again from the last checkpoint: as often as it takes, while a rank is left. The keeper of
/// a lost rank waits for the end of the job. The status is the job's, the same on all keepers: ok,
/// or what ended it, a rank that failed by itself, or the loss of rank 0's keeper. No rank outlives
/// this call, nor this process. Needs --replan and --save, a folder that all see.
Status run_keeper(const Plan& plan, const RunOptions& options, const RankPlace& place,
                  const std::vector<std::string>& args, Console console);

}  // namespace agpcs
