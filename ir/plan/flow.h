// SPDX-License-Identifier: Apache-2.0
// Flow schedules of plans: where their chunks lie, and their lines in a plan's text.
#pragma once

#include "ir/diagnostics.h"
#include "ir/plan_lines.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Largest number of sub-chunks of a chunk.
inline constexpr int kMaxSubChunks = 1024;

/// The elements [begin, end) of part `index` of `parts` parts of a buffer, as equal as can be: the
/// first ones are longer by one. One rule for the runtime and the cost model.
struct ElementRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
ElementRange part_of(std::int64_t elements, std::int64_t parts, std::int64_t index);

/// Reads "sub-chunks=2" and "order=rounds". What is wrong with them is reported.
int read_sub_chunks(PlanLineReader& in);
FlowOrder read_flow_order(PlanLineReader& in);

/// "  reduce_scatter after=2>0 0>1:3.0,3.1 1>2:0.1", for a stage of these ranks; without line end.
std::string print_flow_step(const FlowStep& step, int sub_chunks, const std::vector<int>& ranks);
/// Reads that line. What is wrong with it is reported.
FlowStep parse_flow_step(const PlanLine& line, Diagnostics& diagnostics, int sub_chunks,
                         const PlanStage& stage);

}  // namespace agpcs
