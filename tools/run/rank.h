// SPDX-License-Identifier: Apache-2.0
// Runs one rank of a training job.
#pragma once

#include "tools/common/common.h"
#include "tools/run/options.h"
#include "tools/run/processes/launch.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Checks that the launcher started as many ranks as the plan has.
Status check_size(const Plan& plan, const RankPlace& place);

/// Joins the job as `place.rank`, trains, and leaves. Rank 0 reports to `console`. A failure names
/// the rank that failed first, wherever it ran. If another rank fails while this one is in a long
/// computation, `last_word` is called with the failure and the process ends at once.
Status run_rank(const Plan& plan, const RunOptions& options, const RankPlace& place,
                Console console, const LastWord& last_word);

/// Runs all ranks of the plan as threads of this process, over loopback.
Status run_loopback(const Plan& plan, const RunOptions& options, Console console);

/// Returns the names by rank: "rank 1 (volta/1)".
std::vector<std::string> rank_names(const Plan& plan);

}  // namespace agpcs
