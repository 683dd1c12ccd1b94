// SPDX-License-Identifier: Apache-2.0
// The small parts of the plan's text form that printer and parser share
// (docs/reference/plan_format.md).
#pragma once

#include <agpcs/plan.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns a name as one token: itself, or quoted when it is empty or contains a space, a quote, a
/// backslash, '=', ',' or a control character.
std::string quoted(std::string_view name);
/// Returns the name that `quoted` wrote; nothing for a malformed token.
std::optional<std::string> unquoted(std::string_view token);
/// Splits at `separator` outside quotes. Parts may be empty.
std::vector<std::string_view> split_outside_quotes(std::string_view text, char separator);

/// Print and parse "0-3,6": ascending integers as runs.
std::string print_ranks(const std::vector<int>& ranks);
std::optional<std::vector<int>> parse_ranks(std::string_view text);
/// Print and parse "volta/0-3,ampere/0": devices as runs of indices of one host.
std::string print_devices(const std::vector<std::string>& devices);
std::optional<std::vector<std::string>> parse_devices(std::string_view text);
/// Print and parse "16x4,20": equal neighbours as value x count.
std::string print_samples(const std::vector<std::int64_t>& samples);
std::optional<std::vector<std::int64_t>> parse_samples(std::string_view text);

/// Parses a whole decimal integer that is in range; the only sign allowed is '-'.
std::optional<std::int64_t> parse_integer(std::string_view text);
/// Parses a finite number.
std::optional<double> parse_number(std::string_view text);

/// Returns the opcode of that name; those of events are included.
std::optional<Opcode> opcode_named(std::string_view name);
/// Returns the letter of the objects that instructions of `opcode` name: 'c' for cuts, 'b' for
/// buckets, 's' for stages, which passes name where their program has several, 0 when they name no
/// object.
char object_letter(Opcode opcode);
bool has_micro_batch(Opcode opcode);
/// Returns whether an instruction of `opcode` may have one: always, or where ranks divide
/// gradients.
bool may_have_micro_batch(Opcode opcode);
/// Prints a micro-batch: "7"; within a `repeat` as the distance from that of the repetition: "+2".
std::string print_micro_batch(int micro_batch, std::optional<int> repetition);
/// Parses that; nothing if it is none.
std::optional<int> parse_micro_batch(std::string_view text, std::optional<int> repetition);
/// Prints "recv_gradient:c1:3", "gradients:b0:7", "forward:0", "forward:s2:0", "update", as
/// `name_of` does; within a `repeat` "recv_gradient:c1:+1".
std::string print_instruction_id(const InstructionId& id, std::optional<int> repetition);
std::optional<InstructionId> parse_instruction_id(std::string_view text,
                                                  std::optional<int> repetition);

/// As `parse_plan`, but the text may say the plan in other lines than `print_plan` does.
Result<Plan> parse_any_spelling(std::string_view text, std::string_view file);

}  // namespace agpcs
