// SPDX-License-Identifier: Apache-2.0
// One rank of a training job.
#pragma once

#include "tools/common.h"
#include "tools/run_launch.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// That the launcher started as many ranks as the plan has.
Status check_size(const Plan& plan, const RankPlace& place);

/// Joins the job as `place.rank`, trains, and leaves. Rank 0 reports to `console`. A failure names
/// the rank that failed first, wherever that was. When another rank fails while this one is deep in
/// a computation, `last_word` is called with the failure and the process ends there and then.
Status run_rank(const Plan& plan, const RunOptions& options, const RankPlace& place,
                Console console, const LastWord& last_word);

/// All ranks of the plan as threads of this process, over loopback.
Status run_loopback(const Plan& plan, const RunOptions& options, Console console);

/// By rank: "rank 1 (volta/1)".
std::vector<std::string> rank_names(const Plan& plan);

}  // namespace agpcs
