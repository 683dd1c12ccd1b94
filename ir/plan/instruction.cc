// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/instruction.h"

#include "ir/base/units.h"
#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

const std::vector<std::string> kOpcodes = {
    "forward",    "backward",       "send",       "recv",   "send_gradient", "recv_gradient",
    "all_reduce", "reduce_scatter", "all_gather", "update", "report"};

void read_after(PlanLineReader& in, std::vector<InstructionId>& after) {
  for (const std::string_view part : split_outside_quotes(in.value("after"), ',')) {
    if (const std::optional<InstructionId> id = parse_instruction_id(part)) {
      after.push_back(*id);
      continue;
    }
    const std::string word(part.substr(0, part.find(':')));
    std::vector<std::string> words = kOpcodes;
    words.push_back("gradients");
    const std::string near = opcode_named(word) ? "" : nearest(word, words);
    return in.fail(fmt::format("'{}' names no instruction", part),
                   near.empty() ? "as in forward:0, recv:c0:1, all_reduce:b2, gradients:b2:3"
                                : fmt::format("did you mean '{}'?", near));
  }
}

}  // namespace

Instruction read_instruction(const PlanLine& line, Diagnostics& diagnostics,
                             std::int64_t micro_batches) {
  PlanLineReader in(line, diagnostics, {"mb", "after"});
  Instruction instruction;
  const std::optional<Opcode> opcode = opcode_named(line.keyword());
  if (!opcode || *opcode == Opcode::kGradients) {
    in.fail(fmt::format("unknown instruction '{}'", line.keyword()),
            did_you_mean(line.keyword(), kOpcodes, "instructions"));
    return instruction;
  }
  instruction.id.opcode = *opcode;
  const char letter = object_letter(*opcode);
  if (letter != '\0') {
    instruction.id.object = in.reference(letter, letter == 'b' ? "a bucket" : "a cut");
  }
  if (has_micro_batch(*opcode)) {
    const std::int64_t micro_batch = in.integer_value("mb");
    if (micro_batch < 0 || micro_batch >= std::max<std::int64_t>(micro_batches, 1)) {
      in.fail(fmt::format("mb is {}, of {} micro-batches", micro_batch, micro_batches));
    }
    instruction.id.micro_batch = static_cast<int>(micro_batch);
  }
  if (in.next_is("after")) read_after(in, instruction.after);
  in.finish();
  return instruction;
}

std::optional<Expectation> read_expectation(const PlanLine& line, Diagnostics& diagnostics) {
  const std::string_view unit = expectation_unit(line.keyword());
  const std::string_view text = line.text.substr(2);
  std::size_t space = text.rfind(' ');
  if (unit == "samples/s" && space != std::string_view::npos && space > 0) {
    space = text.rfind(' ', space - 1);
  }
  const std::string_view value = space == std::string_view::npos ? "" : text.substr(space + 1);
  const std::optional<double> number = read_figure(value, unit);
  if (number) return Expectation{std::string(text.substr(0, space)), *number, std::string(unit)};
  diagnostics.error(
      {line.number, 3 + static_cast<int>(text.size() - value.size()),
       static_cast<int>(value.size())},
      fmt::format("'{}' is no figure such as {}", value, figure(unit.empty() ? 0.5 : 1500, unit)));
  return {};
}

}  // namespace agpcs
