// SPDX-License-Identifier: Apache-2.0
// The schedule of one method after its check, and the figures that are reported of it.
#pragma once

#include "planner/flows/bound.h"
#include "planner/flows/method.h"
#include "tools/allreduce/input.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Sums are checked with numbers for up to this many servers, because the check's memory is
/// quadratic.
inline constexpr int kMostCheckedServers = 2'048;

struct AllreduceResult {
  std::string method;  ///< the file's name if a file was checked
  FlowSchedule schedule;
  double planning_seconds = 0;  ///< by the clock
  bool sums_checked = false;
};

/// The number of rounds below which no schedule of up to `max_sub_chunks` sub-chunks can go.
struct RoundsBound {
  FlowBound bound;
  double rounds = 0;
};
RoundsBound lower_bound_of(const Topology& topology, int max_sub_chunks, bool barrier);

/// Runs a method and proves its schedule. Errors: those of the method; kInternal if the schedule is
/// wrong.
Result<AllreduceResult> schedule_by(const FlowMethod& method, const Topology& topology,
                                    const FlowOptions& options);

/// Runs `verify_schedule`, then `check_sums` for up to kMostCheckedServers. Sets `sums_checked`.
Status check_result(const Topology& topology, AllreduceResult& result);

/// Tells whether the all-gather begins only after the whole reduce-scatter.
bool has_barrier(const FlowSchedule& schedule);

/// Returns the rounds beyond the bound, as a fraction of the bound; 0 if the schedule meets it.
double gap_of(const AllreduceResult& result, const RoundsBound& bound);

/// The fraction of its capacity that each link carries: over the rounds, and in the time that an
/// all-reduce of `bytes` takes.
struct LinkUse {
  std::vector<double> in_rounds, in_time;  ///< by link
  double mean_in_rounds = 0, mean_in_time = 0;
};
LinkUse link_use(const AllreduceInput& input, const FlowSchedule& schedule, std::int64_t bytes,
                 double seconds);

}  // namespace agpcs
