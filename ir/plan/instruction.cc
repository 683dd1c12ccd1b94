// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/instruction.h"

#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

const std::vector<std::string> kOpcodes = {
    "forward",    "backward",      "backward_input", "backward_weight", "send",
    "recv",       "send_gradient", "recv_gradient",  "all_reduce",      "reduce_scatter",
    "all_gather", "update",        "report",         "gather_forward",  "gather_backward"};

void read_after(PlanLineReader& in, std::optional<int> repetition,
                std::vector<InstructionId>& after) {
  for (const std::string_view part : split_outside_quotes(in.value("after"), ',')) {
    if (const std::optional<InstructionId> id = parse_instruction_id(part, repetition)) {
      after.push_back(*id);
      continue;
    }
    const std::string word(part.substr(0, part.find(':')));
    std::vector<std::string> words = kOpcodes;
    words.insert(words.end(), {"gradients", "in_forward", "in_backward"});
    const std::string near = opcode_named(word) ? "" : nearest(word, words);
    return in.fail(fmt::format("'{}' names no instruction", part),
                   !near.empty() ? fmt::format("did you mean '{}'?", near)
                   : repetition  ? "within 'repeat', as in forward:+0, recv:c0:+1, send:c0:-1"
                                 : "as in forward:0, recv:c0:1, all_reduce:b2, gradients:b2:3");
  }
}

int read_micro_batch(PlanLineReader& in, std::int64_t micro_batches,
                     std::optional<int> repetition) {
  const std::string_view text = in.value("mb");
  const std::optional<int> micro_batch = parse_micro_batch(text, repetition);
  if (micro_batch && *micro_batch < std::max<std::int64_t>(micro_batches, 1)) return *micro_batch;
  if (!repetition) {
    in.fail(fmt::format("mb is '{}', of {} micro-batches", text, micro_batches));
  } else if (const std::optional<std::int64_t> plain = parse_integer(text); plain && *plain >= 0) {
    in.fail(fmt::format("mb is '{}' within 'repeat'", text),
            "how far it is from the micro-batch of the repetition, as in mb=+0");
  } else {
    in.fail(fmt::format("mb is '{}' in the repetition of micro-batch {}, of {} micro-batches", text,
                        *repetition, micro_batches));
  }
  return 0;
}

}  // namespace

std::string print_instruction(const Instruction& instruction, std::optional<int> repetition) {
  const InstructionId& id = instruction.id;
  std::string text(name_of(id.opcode));
  if (id.object >= 0) text += fmt::format(" {}{}", object_letter(id.opcode), id.object);
  if (id.micro_batch >= 0) text += " mb=" + print_micro_batch(id.micro_batch, repetition);
  const char* separator = " after=";
  for (const InstructionId& dependency : instruction.after) {
    text += separator + print_instruction_id(dependency, repetition);
    separator = ",";
  }
  return text;
}

Instruction read_instruction(const PlanLine& line, Diagnostics& diagnostics,
                             std::int64_t micro_batches, std::optional<int> repetition) {
  PlanLineReader in(line, diagnostics, {"mb", "after"});
  Instruction instruction;
  const std::optional<Opcode> opcode = opcode_named(line.keyword());
  if (!opcode || is_event(*opcode)) {
    in.fail(fmt::format("unknown instruction '{}'", line.keyword()),
            did_you_mean(line.keyword(), kOpcodes, "instructions"));
    return instruction;
  }
  instruction.id.opcode = *opcode;
  const char letter = object_letter(*opcode);
  if (letter == 's') {
    if (in.next_is_word()) instruction.id.object = in.reference(letter, "a stage");
  } else if (letter != '\0') {
    instruction.id.object = in.reference(letter, letter == 'b' ? "a bucket" : "a cut");
  }
  if (has_micro_batch(*opcode) || (may_have_micro_batch(*opcode) && in.next_is("mb"))) {
    instruction.id.micro_batch = read_micro_batch(in, micro_batches, repetition);
  }
  if (in.next_is("after")) read_after(in, repetition, instruction.after);
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
