// SPDX-License-Identifier: Apache-2.0
// Lines of a plan's text: tokens with columns, read in a fixed order of words and keys.
#pragma once

#include "ir/diagnostics.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

struct PlanToken {
  std::string_view text;
  int column = 0;  ///< from 1
};

struct PlanLine {
  int number = 0;  ///< from 1
  std::string_view text;
  bool indented = false;          ///< belongs to the line before it that is not
  std::vector<PlanToken> tokens;  ///< at least one
  std::string_view keyword() const { return tokens.front().text; }
};

/// Splits a text into lines and tokens. Reports blank lines, wrong indentation, carriage returns
/// and a missing last line end.
std::vector<PlanLine> split_plan_lines(std::string_view text, Diagnostics& diagnostics);

/// Reads one line after its keyword: words, then `key=value` in the order given. The first error
/// silences the rest of the line; from then on defaults are returned.
class PlanLineReader {
 public:
  /// `keys`: all keys that the line has, for messages.
  PlanLineReader(const PlanLine& line, Diagnostics& diagnostics, std::vector<std::string> keys)
      : line_(line), diagnostics_(diagnostics), keys_(std::move(keys)) {}

  bool ok() const { return !failed_; }
  bool at_end() const { return next_ == line_.tokens.size(); }
  /// The next token as it is; `what` names it in messages.
  std::string_view word(std::string_view what);
  /// The next token as a name, unquoted.
  std::string name(std::string_view what);
  /// "s12" -> 12 for letter 's'; -1 when wrong.
  int reference(char letter, std::string_view what);

  /// True when the next token is `key`=...; for keys that may be left out.
  bool next_is(std::string_view key) const;
  std::string_view value(const std::string& key);
  std::string name_value(const std::string& key);
  std::int64_t integer_value(const std::string& key);
  std::uint64_t unsigned_value(const std::string& key);
  double number_value(const std::string& key);
  bool yes_no_value(const std::string& key);
  int reference_value(const std::string& key, char letter);
  /// Reports what is left over.
  void finish();

  /// Reports `message` about the token read last.
  void fail(std::string message, std::string hint = {});

 private:
  const PlanToken* take(std::string_view what);
  void fail_key(const PlanToken& token, const std::string& expected);

  const PlanLine& line_;
  Diagnostics& diagnostics_;
  std::vector<std::string> keys_;
  std::size_t next_ = 1;
  bool failed_ = false;
};

}  // namespace agpcs
