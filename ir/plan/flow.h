// SPDX-License-Identifier: Apache-2.0
// Flow schedules of plans: where their chunks lie in the buffer, and their lines in a plan's text.
#pragma once

#include "ir/base/diagnostics.h"
#include "ir/plan/lines.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// The most sub-chunks that a chunk may have.
inline constexpr int kMaxSubChunks = 1024;

/// Returns the elements of one part of a buffer that is cut into `parts` parts as equal as
/// possible: the first parts may be longer by one. The runtime and the cost model share this rule.
ElementRange part_of(std::int64_t elements, std::int64_t parts, std::int64_t index);

/// Read "sub-chunks=2" and "order=rounds". They report errors through `in`.
int read_sub_chunks(PlanLineReader& in);
FlowOrder read_flow_order(PlanLineReader& in);

/// Prints "  add after=2>0 0>1:3.0,3.1 1>2:0.1", without line end. `ranks` are those of
/// the flow's stage.
std::string print_flow_step(const FlowStep& step, int sub_chunks, const std::vector<int>& ranks);
/// Reads that line. Errors go to `diagnostics`.
FlowStep parse_flow_step(const PlanLine& line, Diagnostics& diagnostics, int sub_chunks,
                         const PlanStage& stage);

}  // namespace agpcs
