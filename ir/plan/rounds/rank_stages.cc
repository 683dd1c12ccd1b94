// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/rounds/rank_stages.h"

#include "ir/plan/lookup.h"

#include <algorithm>
#include <cstddef>

namespace agpcs {

int working_stages(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.stages.begin(), plan.stages.end(),
                                        [](const PlanStage& stage) { return !stage.idle(); }));
}

int stages_of_each_rank(const Plan& plan) {
  const int round = plan.round_size();
  return plan.interleaves() && round > 0 ? working_stages(plan) / round : 1;
}

bool is_local(const Plan& plan, const Cut& cut) {
  return plan.stages[static_cast<std::size_t>(cut.from)].ranks ==
         plan.stages[static_cast<std::size_t>(cut.to)].ranks;
}

std::string names_of_stages(const Plan& plan, int stage) {
  std::string names;
  for (const int own : plan.stages_of_program(plan.program_of(stage))) {
    names += (names.empty() ? "" : ",") + plan.stages[static_cast<std::size_t>(own)].name;
  }
  return names;
}

InstructionId gradients_pass(const Plan& plan, int stage, int bucket, int micro_batch) {
  if (plan.interleaves()) {
    const int program = plan.program_of(stage);
    for (const int other : stages_of(plan.buckets[static_cast<std::size_t>(bucket)])) {
      if (plan.program_of(other) == program) return plan.weight_pass(other, micro_batch);
    }
  }
  return plan.weight_pass(stage, micro_batch);
}

std::int64_t most_in_flight(const Plan& plan, int stage) {
  Program own;  // what of the program is of the stage
  const auto program = static_cast<std::size_t>(plan.program_of(stage));
  for (const Instruction& instruction : plan.programs[program].instructions) {
    if (is_of(plan, instruction.id, stage)) own.instructions.push_back({instruction.id, {}});
  }
  return most_in_flight(own);
}

std::int64_t most_in_flight_of_a_stage(const Plan& plan, const Program& program) {
  std::int64_t most = 0;
  for (const int stage : plan.stages_of_program(plan.program_of(program.stage))) {
    most = std::max(most, most_in_flight(plan, stage));
  }
  return most;
}

}  // namespace agpcs
