// SPDX-License-Identifier: Apache-2.0
// One rank of a training job.
#pragma once

#include "tools/common.h"
#include "tools/run_launch.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <functional>
#include <string>

namespace agpcs {

/// Joins the job as `place.rank`, trains, and leaves. Rank 0 reports to `console`. A failure names
/// the rank that failed first, wherever that was. When another rank fails while this one is deep in
/// a computation, `last_word` is called with the failure and the process ends there and then.
Status run_rank(const Plan& plan, const RunOptions& options, const RankPlace& place,
                Console console, const std::function<void(const Status&)>& last_word);

/// All ranks of the plan as threads of this process, over loopback.
Status run_loopback(const Plan& plan, const RunOptions& options, Console console);

/// "rank 1 (volta/1)".
std::string rank_name(const Plan& plan, int rank);

}  // namespace agpcs
