// SPDX-License-Identifier: Apache-2.0
// Reading YAML with diagnostics: a map whose keys are known, and typed access to its values. Every
// error is reported at its place in the file, and reading goes on.
#pragma once

#include "frontend/cluster_units.h"
#include "ir/diagnostics.h"

#include <agpcs/status.h>

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// What a file should be, for messages: "cluster file", "docs/cluster_yaml.md".
struct FileKind {
  std::string_view noun, reference;
};

/// The text of a file, as `read_file` reads it. One that has more than 16 MiB is an error.
Result<std::string> read_text(const std::string& path, const FileKind& kind);

/// The one document in `text`; empty after an error was reported (bad syntax, empty, several).
std::optional<YAML::Node> load_yaml(const std::string& text, const FileKind& kind,
                                    Diagnostics& diagnostics);

/// Where a value is, with its length when it is a scalar.
SourceRange range_of(const YAML::Node& node);

/// A value as messages show it: the scalar itself, "a list", "a map" or "nothing".
std::string describe(const YAML::Node& node);

/// True for what a plan file can hold as a name: letters, digits, '_', '.', '-'.
bool is_name(std::string_view text);

enum class Sign { kPositive, kNotNegative };

class YamlMap {
 public:
  struct Entry {
    std::string key;
    YAML::Node key_node, value;
  };

  /// Reports when `node` is no map, and keys that are unknown (not among `keys`; an empty list
  /// admits every key) or doubled. `what` names the map in messages: "host 'volta'".
  YamlMap(const YAML::Node& node, std::string what, std::vector<std::string> keys,
          Diagnostics& diagnostics);

  const std::vector<Entry>& entries() const { return entries_; }
  const std::string& what() const { return what_; }
  /// The value; nullptr when it is absent or null.
  const YAML::Node* find(std::string_view key) const;
  /// The same, and reports that `what` lacks it.
  const YAML::Node* require(std::string_view key) const;
  /// Where the map starts.
  SourceRange where() const { return where_; }

  /// The typed readers give nothing when the key is absent, or after reporting a wrong value.
  std::optional<double> quantity(std::string_view key, QuantityKind quantity, Sign sign) const;
  std::optional<double> number(std::string_view key, Sign sign) const;
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least,
                                      std::int64_t most) const;
  std::optional<std::string> name(std::string_view key) const;
  /// One of `choices`; in messages: "unknown <noun> 'x'", "<plural>: ...".
  std::optional<std::string> choice(std::string_view key, std::string_view noun,
                                    std::string_view plural,
                                    const std::vector<std::string>& choices) const;

 private:
  void add(const YAML::Node& key, const YAML::Node& value, const std::vector<std::string>& keys);
  bool signed_right(std::string_view key, const YAML::Node& node, double value, Sign sign) const;

  std::string what_;
  SourceRange where_;
  std::vector<Entry> entries_;
  Diagnostics* diagnostics_;
};

}  // namespace agpcs
