// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/text.h"

#include <cstddef>
#include <limits>

namespace agpcs {
namespace {

/// Reads "3" or, with a letter, "b3"; returns -1 for anything else.
int parse_index(std::string_view text, char letter) {
  if (letter != '\0') {
    if (text.empty() || text.front() != letter) return -1;
    text.remove_prefix(1);
  }
  const std::optional<std::int64_t> number = parse_integer(text);
  if (!number || *number < 0 || *number > std::numeric_limits<int>::max()) return -1;
  return static_cast<int>(*number);
}

}  // namespace

std::optional<Opcode> opcode_named(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Opcode::kGradients); ++i) {
    if (name_of(static_cast<Opcode>(i)) == name) return static_cast<Opcode>(i);
  }
  return {};
}

char object_letter(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend:
    case Opcode::kRecv:
    case Opcode::kSendGradient:
    case Opcode::kRecvGradient:
      return 'c';
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
    case Opcode::kAllGather:
    case Opcode::kGradients:
      return 'b';
    case Opcode::kForward:
    case Opcode::kBackward:
    case Opcode::kUpdate:
    case Opcode::kReport:
      break;
  }
  return '\0';
}

bool has_micro_batch(Opcode opcode) {
  switch (opcode) {
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
    case Opcode::kAllGather:
    case Opcode::kUpdate:
    case Opcode::kReport:
      return false;
    default:
      return true;
  }
}

std::optional<InstructionId> parse_instruction_id(std::string_view text) {
  const std::vector<std::string_view> parts = split_outside_quotes(text, ':');
  const std::optional<Opcode> opcode = opcode_named(parts[0]);
  if (!opcode) return {};
  InstructionId id = {*opcode, -1, -1};
  const char letter = object_letter(*opcode);
  const std::size_t length = 1 + (letter != '\0' ? 1 : 0) + (has_micro_batch(*opcode) ? 1 : 0);
  if (parts.size() != length) return {};
  if (letter != '\0' && (id.object = parse_index(parts[1], letter)) < 0) return {};
  if (has_micro_batch(*opcode) && (id.micro_batch = parse_index(parts.back(), '\0')) < 0) return {};
  return id;
}

}  // namespace agpcs
