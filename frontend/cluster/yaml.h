// SPDX-License-Identifier: Apache-2.0
// Reads YAML with diagnostics: a map whose keys are known, and typed access to its values. Every
// error is reported at its place in the file, and reading goes on.
#pragma once

#include "frontend/cluster/units.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"

#include <agpcs/status.h>

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// The kind of a file, for messages: "cluster file", "docs/reference/cluster_yaml.md".
struct FileKind {
  std::string_view noun, reference;
};

/// Reads the text of a file as `read_file` does. A file of more than 16 MiB is an error.
Result<std::string> read_text(const std::string& path, const FileKind& kind);

/// Parses the one document in `text`. Returns nullopt after reporting an error: bad syntax, no
/// document, or several.
std::optional<YAML::Node> load_yaml(const std::string& text, const FileKind& kind,
                                    Diagnostics& diagnostics);

/// Returns where a value is, with its length if it is a scalar.
SourceRange range_of(const YAML::Node& node);

/// Describes a value for messages: the scalar itself, "a list", "a map" or "nothing".
std::string describe(const YAML::Node& node);

/// Tells whether a plan file can hold `text` as a name: letters, digits, '_', '.', '-'.
bool is_name(std::string_view text);

enum class Sign { kPositive, kNotNegative };

class YamlMap {
 public:
  struct Entry {
    std::string key;
    YAML::Node key_node, value;
  };

  /// Reports a `node` that is not a map, and keys that are unknown or occur twice. A key is unknown
  /// if it is not among `keys`; an empty list admits every key. `what` names the map in messages:
  /// "host 'volta'".
  YamlMap(const YAML::Node& node, std::string what, std::vector<std::string> keys,
          Diagnostics& diagnostics);

  const std::vector<Entry>& entries() const { return entries_; }
  const std::string& what() const { return what_; }
  /// Returns the value, or nullptr if it is absent or null.
  const YAML::Node* find(std::string_view key) const;
  /// Does the same, and reports a value that `what` lacks.
  const YAML::Node* require(std::string_view key) const;
  /// Returns where the map starts.
  SourceRange where() const { return where_; }

  /// The typed readers return nullopt if the key is absent, and after reporting a wrong value.
  std::optional<double> quantity(std::string_view key, QuantityKind quantity, Sign sign) const;
  std::optional<double> number(std::string_view key, Sign sign) const;
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least,
                                      std::int64_t most) const;
  std::optional<std::string> name(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;  ///< true or false
  /// Reads one of `choices`. Its messages: "unknown <noun> 'x'", "<plural>: ...".
  std::optional<std::string> choice(std::string_view key, std::string_view noun,
                                    std::string_view plural,
                                    const std::vector<std::string>& choices) const;
  /// Reads the name of an entry of `table` (ir/base/named.h), and returns its value.
  template <typename Table>
  auto choice_of(const Table& table, std::string_view key, std::string_view noun,
                 std::string_view plural) const -> std::optional<decltype(table[0].value)> {
    const std::optional<std::string> name = choice(key, noun, plural, names_in(table));
    if (!name) return std::nullopt;
    return value_named(table, *name);
  }

 private:
  void add(const YAML::Node& key, const YAML::Node& value, const std::vector<std::string>& keys);
  bool signed_right(std::string_view key, const YAML::Node& node, double value, Sign sign) const;

  std::string what_;
  SourceRange where_;
  std::vector<Entry> entries_;
  Diagnostics* diagnostics_;
};

}  // namespace agpcs
