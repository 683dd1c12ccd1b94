// SPDX-License-Identifier: Apache-2.0
// The schedule of one method, checked, and what is reported of it.
#pragma once

#include "planner/flow_bound.h"
#include "planner/flow_method.h"
#include "tools/allreduce_input.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Sums are checked on numbers up to that many servers: their memory is quadratic.
inline constexpr int kMostCheckedServers = 2'048;

struct AllreduceResult {
  std::string method;  ///< the file's name where a file was checked
  FlowSchedule schedule;
  double planning_seconds = 0;  ///< by the clock
  bool sums_checked = false;
};

/// Rounds that no schedule of up to `max_sub_chunks` sub-chunks undercuts.
struct RoundsBound {
  FlowBound bound;
  double rounds = 0;
};
RoundsBound lower_bound_of(const Topology& topology, int max_sub_chunks, bool barrier);

/// Runs a method and proves its schedule. Errors: those of the method; kInternal where the schedule
/// is wrong.
Result<AllreduceResult> schedule_by(const FlowMethod& method, const Topology& topology,
                                    const FlowOptions& options);

/// `verify_schedule`, then `check_sums` up to kMostCheckedServers; sets `sums_checked`.
Status check_result(const Topology& topology, AllreduceResult& result);

/// Whether the all-gather begins after the whole reduce-scatter.
bool has_barrier(const FlowSchedule& schedule);

/// Part of the bound's rounds that the schedule takes more: 0 when it meets it.
double gap_of(const AllreduceResult& result, const RoundsBound& bound);

/// Parts of what each link could carry that it carries: over the rounds, and in the time that an
/// all-reduce of `bytes` takes.
struct LinkUse {
  std::vector<double> in_rounds, in_time;  ///< by link
  double mean_in_rounds = 0, mean_in_time = 0;
};
LinkUse link_use(const AllreduceInput& input, const FlowSchedule& schedule, std::int64_t bytes,
                 double seconds);

}  // namespace agpcs
