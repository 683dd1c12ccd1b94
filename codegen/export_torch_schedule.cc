// SPDX-License-Identifier: Apache-2.0
#include "codegen/export_torch_schedule.h"

#include "codegen/pipeline_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

/// Returns the letter of PyTorch's action; '\0' for an instruction that is none.
char action_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kForward:
      return 'F';
    case Opcode::kBackward:
      return 'B';
    case Opcode::kBackwardInput:
      return 'I';
    case Opcode::kBackwardWeight:
      return 'W';
    default:
      return '\0';
  }
}

}  // namespace

Result<std::string> torch_schedule_csv(const Plan& plan) {
  AGPCS_RETURN_IF_ERROR(check_pipeline(plan, {"PyTorch's runtime"}));
  return schedule_lines(plan);
}

std::string schedule_lines(const Plan& plan) {
  std::vector<std::string> lines(static_cast<std::size_t>(plan.rank_count()));
  for (const Program& program : plan.programs) {
    std::string& line = lines[static_cast<std::size_t>(
        plan.stages[static_cast<std::size_t>(program.stage)].ranks.front())];
    for (const Instruction& instruction : program.instructions) {
      const InstructionId& id = instruction.id;
      const char action = action_of(id.opcode);
      if (action == '\0') continue;
      line += fmt::format("{}{}{}{}", line.empty() ? "" : ",",
                          Plan::stage_of_pass(id, program.stage), action, id.micro_batch);
    }
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace agpcs
