// SPDX-License-Identifier: Apache-2.0
// Lines of a plan's text: tokens with columns, read in a fixed order of words and keys.
#pragma once

#include "ir/base/diagnostics.h"

#include <agpcs/types.h>

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
  int depth = 0;                  ///< 0: begins a section; 1: an item of it; 2: below an item
  std::vector<PlanToken> tokens;  ///< at least one
  std::string_view keyword() const { return tokens.front().text; }
};

SourceRange keyword_range(const PlanLine& line);

/// Splits a text into lines and tokens. Reports blank lines, wrong indentation, carriage returns
/// and a missing last line end.
std::vector<PlanLine> split_plan_lines(std::string_view text, Diagnostics& diagnostics);

/// The lines of a plan's text, one after the other. Errors go to `diagnostics`.
class PlanLines {
 public:
  PlanLines(std::string_view text, Diagnostics& diagnostics);

  const std::vector<PlanLine>& all() const { return lines_; }
  int last_number() const { return lines_.empty() ? 0 : lines_.back().number; }
  const PlanLine* peek() const { return next_ < lines_.size() ? &lines_[next_] : nullptr; }
  void skip() { ++next_; }
  /// Returns the next line if it is `keyword`. Otherwise reports it, and skips a line that was
  /// meant to be `keyword`.
  const PlanLine* expect(const std::string& keyword);
  /// Returns the next item of the section that is being read; null at its end. Reports items that
  /// are not `keyword`, unless that is empty.
  const PlanLine* next_item(const std::string& keyword);
  /// Returns the lines below the item that was read last.
  std::vector<const PlanLine*> nested();

 private:
  std::vector<PlanLine> lines_;
  std::size_t next_ = 0;
  Diagnostics& diagnostics_;
};

/// Reports a section whose items do not add up to the total in its first line.
void check_total(const PlanLine& line, Diagnostics& diagnostics, std::string_view what,
                 std::int64_t stated, std::int64_t found);

/// Reads one line after its keyword: words, then `key=value` pairs in a fixed order. After the
/// first error, the reader reports no other error of the line and returns defaults.
class PlanLineReader {
 public:
  /// `keys` are all keys that the line may have; messages list them.
  PlanLineReader(const PlanLine& line, Diagnostics& diagnostics, std::vector<std::string> keys)
      : line_(line), diagnostics_(diagnostics), keys_(std::move(keys)) {}

  bool ok() const { return !failed_; }
  bool at_end() const { return next_ == line_.tokens.size(); }
  /// Reads the next token as it is; `what` names it in messages.
  std::string_view word(std::string_view what);
  /// Reads the next token as a name and unquotes it.
  std::string name(std::string_view what);
  /// Reads "s12" as 12 for letter 's'; returns -1 when the token is wrong.
  int reference(char letter, std::string_view what);

  /// Reads the next token "s1,s3" as {1, 3} for letter 's'.
  std::vector<int> references(char letter, std::string_view what);

  /// Returns true when the next token is `key`=...; for keys that may be left out.
  bool next_is(std::string_view key) const;
  /// Returns true when the next token is no key=...; for words that may be left out.
  bool next_is_word() const;
  std::string_view value(const std::string& key);
  std::string name_value(const std::string& key);
  std::int64_t integer_value(const std::string& key);
  std::uint64_t unsigned_value(const std::string& key);
  double number_value(const std::string& key);
  bool yes_no_value(const std::string& key);
  DType type_value(const std::string& key);
  int reference_value(const std::string& key, char letter);
  /// Reads "s1,s3" as {1, 3} for letter 's'.
  std::vector<int> references_value(const std::string& key, char letter);
  /// Reports tokens that are left over.
  void finish();

  /// Reports `message` at the token read last.
  void fail(std::string message, std::string hint = {});

 private:
  const PlanToken* take(std::string_view what);
  std::vector<int> list_of_references(std::string_view text, char letter, std::string_view said);
  void fail_key(const PlanToken& token, const std::string& expected);

  const PlanLine& line_;
  Diagnostics& diagnostics_;
  std::vector<std::string> keys_;
  std::size_t next_ = 1;
  bool failed_ = false;
};

}  // namespace agpcs
