// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/text.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>

namespace agpcs {
namespace {

/// Reads "b3" for letter 'b'; returns -1 for anything else.
int parse_object(std::string_view text, char letter) {
  if (text.empty() || text.front() != letter) return -1;
  const std::optional<std::int64_t> number = parse_integer(text.substr(1));
  if (!number || *number < 0 || *number > std::numeric_limits<int>::max()) return -1;
  return static_cast<int>(*number);
}

}  // namespace

std::optional<Opcode> opcode_named(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Opcode::kInBackward); ++i) {
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
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
    case Opcode::kGradients:
    case Opcode::kInForward:
    case Opcode::kInBackward:
      return 'b';
    case Opcode::kForward:
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
      return 's';
    case Opcode::kNorm:
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
    case Opcode::kNorm:
    case Opcode::kUpdate:
    case Opcode::kReport:
      return false;
    default:
      return true;
  }
}

bool may_have_micro_batch(Opcode opcode) {
  return has_micro_batch(opcode) || opcode == Opcode::kReduceScatter;
}

std::string print_micro_batch(int micro_batch, std::optional<int> repetition) {
  return repetition ? fmt::format("{:+}", micro_batch - *repetition) : fmt::to_string(micro_batch);
}

std::optional<int> parse_micro_batch(std::string_view text, std::optional<int> repetition) {
  std::int64_t base = 0;
  if (repetition) {
    if (text.size() < 2 || (text[0] != '+' && text[0] != '-')) return {};
    if (text[0] == '+') text.remove_prefix(1);
    base = *repetition;
  }
  const std::optional<std::int64_t> number = parse_integer(text);
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (!number || *number > kMost || *number < -kMost) return {};
  const std::int64_t micro_batch = base + *number;
  if (micro_batch < 0 || micro_batch > kMost) return {};
  return static_cast<int>(micro_batch);
}

std::string print_instruction_id(const InstructionId& id, std::optional<int> repetition) {
  std::string text(name_of(id.opcode));
  if (id.object >= 0) text += fmt::format(":{}{}", object_letter(id.opcode), id.object);
  if (id.micro_batch >= 0) text += ":" + print_micro_batch(id.micro_batch, repetition);
  return text;
}

std::optional<InstructionId> parse_instruction_id(std::string_view text,
                                                  std::optional<int> repetition) {
  const std::vector<std::string_view> parts = split_outside_quotes(text, ':');
  const std::optional<Opcode> opcode = opcode_named(parts[0]);
  if (!opcode) return {};
  InstructionId id = {*opcode, -1, -1};
  const char letter = object_letter(*opcode);
  const bool names_object = letter == 's' ? parts.size() == 3 : letter != '\0';
  const std::size_t length = names_object ? 2 : 1;
  const bool of_micro_batch = parts.size() == length + 1;
  if (parts.size() != length && !of_micro_batch) return {};
  if (of_micro_batch ? !may_have_micro_batch(*opcode) : has_micro_batch(*opcode)) return {};
  if (names_object && (id.object = parse_object(parts[1], letter)) < 0) return {};
  if (of_micro_batch) {
    const std::optional<int> micro_batch = parse_micro_batch(parts.back(), repetition);
    if (!micro_batch) return {};
    id.micro_batch = *micro_batch;
  }
  return id;
}

}  // namespace agpcs
