// SPDX-License-Identifier: Apache-2.0
// The parts of `verify_plan`. Each appends the faults that it finds. A part may index freely into
// what the parts before it have found right.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// A fault of a plan. `stage` and `instruction` (index into that stage's program) say where it is,
/// if it has a place; the parser turns them into a line number.
struct PlanFault {
  std::string message;
  std::string hint;
  int stage = -1;
  int instruction = -1;
};
using PlanFaults = std::vector<PlanFault>;

/// Larger figures are mistakes. Below this limit, no sum or product of a check overflows.
inline constexpr std::int64_t kLargestFigure = std::int64_t{1} << 48;

/// A section of a plan: the third cut is {"cut", 'c', 2}.
struct PlanSection {
  std::string_view kind;
  char letter = ' ';
  std::size_t index = 0;
};
/// Checks that a section has the name of its place: "c2".
void check_name(const PlanSection& section, const std::string& name, PlanFaults& faults);

/// Checks training, stages, cuts, buckets and expectations, but no programs: names, ranges, ranks,
/// shares.
void check_structure(const Plan& plan, PlanFaults& faults);
/// The part of `check_structure` that checks stages and ranks.
void check_stages(const Plan& plan, PlanFaults& faults);
/// The part of `check_structure` that checks bodies of teams, and the stages that have them.
void check_bodies(const Plan& plan, PlanFaults& faults);
/// Checks each program alone: it has exactly the instructions that its stage needs, each after its
/// inputs.
void check_programs(const Plan& plan, PlanFaults& faults);
/// Checks all programs together: there is no wait cycle, even when a transfer waits for both ends
/// and a rank issues its instructions one by one in program order, waiting at each for its `after`
/// and at each compute instruction for its end.
void check_progress(const Plan& plan, PlanFaults& faults);

/// Runs all three checks; each runs only if those before found no fault.
PlanFaults find_faults(const Plan& plan);

/// Returns the instruction as its line begins: "recv_gradient c1 mb=3".
std::string spelled(const InstructionId& id);

}  // namespace agpcs
