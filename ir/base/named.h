// SPDX-License-Identifier: Apache-2.0
// Families of choices, each with one table. An entry of a table has the `value` of an enumeration,
// its `name` in texts and on command lines, and the `help` that --help prints. Parsing, printing,
// --help, validation and "did you mean" read that table through the functions here.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns true if entry i of a table has the i-th value, as `entry_of` assumes.
template <typename Table>
constexpr bool is_in_order(const Table& table) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (static_cast<std::size_t>(table[i].value) != i) return false;
  }
  return true;
}

/// Returns the entry of `value`. Needs: `is_in_order(table)`.
template <typename Table, typename Value>
constexpr const auto& entry_of(const Table& table, Value value) {
  return table[static_cast<std::size_t>(value)];
}

/// Returns the value with that name, if the table has one.
template <typename Table>
constexpr auto value_named(const Table& table, std::string_view name)
    -> std::optional<decltype(table[0].value)> {
  for (const auto& entry : table) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

template <typename Table>
std::vector<std::string> names_in(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(entry.name);
  return names;
}

/// Returns the names of a list of values, such as `kWireTypes`.
template <typename Values>
std::vector<std::string> names_of(const Values& values) {
  std::vector<std::string> names;
  for (const auto value : values) names.emplace_back(name_of(value));
  return names;
}

/// Returns "gloo: processes over TCP; nccl: GPUs".
template <typename Table>
std::string help_of(const Table& table) {
  std::string help;
  for (const auto& entry : table) {
    if (!help.empty()) help += "; ";
    help += std::string(entry.name) + ": " + std::string(entry.help);
  }
  return help;
}

}  // namespace agpcs
