// SPDX-License-Identifier: Apache-2.0
// The parts of `verify_plan`. Each appends what it finds wrong, and may index freely into what the
// part before it has found right.
#pragma once

#include <agpcs/plan.h>

#include <string>
#include <vector>

namespace agpcs {

/// Something wrong with a plan. `stage` and `instruction` (index into that stage's program) say
/// where, as far as there is a where; the parser turns them into a line.
struct PlanProblem {
  std::string message;
  std::string hint;
  int stage = -1;
  int instruction = -1;
};
using PlanProblems = std::vector<PlanProblem>;

/// Training, stages, cuts, buckets, expectations: names, ranges, ranks, shares. No programs.
void check_structure(const Plan& plan, PlanProblems& problems);
/// Each program alone: exactly the instructions that its stage needs, each after its inputs.
void check_programs(const Plan& plan, PlanProblems& problems);
/// All programs together: no wait cycle, even when a transfer waits for both ends and a rank issues
/// its instructions one by one in program order, waiting at each for its `after` and at each
/// compute instruction for its end.
void check_progress(const Plan& plan, PlanProblems& problems);

/// All three, each only where those before found nothing.
PlanProblems find_problems(const Plan& plan);

/// The instruction as its line begins: "recv_gradient c1 mb=3".
std::string spelled(const InstructionId& id);

}  // namespace agpcs
