// SPDX-License-Identifier: Apache-2.0
// The text of policy files (docs/design/policy.md), as far as both formats share it.
#pragma once

#include "ir/base/diagnostics.h"
#include "planner/policy/perceptron.h"

#include <agpcs/status.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Prints `features`, `units`, then one line a row. Each number is the shortest that reads back as
/// the same float.
std::string print_perceptron(const Perceptron& network);

/// Reads a policy line by line. After the first error every call returns false.
class PolicyReader {
 public:
  PolicyReader(std::string_view text, std::string_view file);

  /// Reads the first two lines: `magic` with its version, then `made-by`.
  bool read_head(std::string_view magic, int version, std::string& made_by);
  /// Reads a line that says `key word`.
  bool read_word(std::string_view key, std::string_view word);
  /// Reads a network. `judged`: what the network judges, in the plural, such as "moves".
  bool read_perceptron(int features, std::string_view judged, Perceptron& network);
  /// Reads the last line, `last`. Nothing may follow it.
  bool read_end(std::string_view last);

  Status status() { return diagnostics_.ok() ? Status() : diagnostics_.status(); }

 private:
  bool fail(std::string message, std::string hint = {});
  bool next(std::string_view key);
  bool read_integer(std::string_view key, int least, int most, int& value);
  bool read_row(std::string_view key, std::size_t count, std::vector<float>& numbers);
  bool read_rows(std::size_t features, std::size_t units, Perceptron& network);

  std::string_view text_, line_, rest_;
  Diagnostics diagnostics_;
  std::size_t at_ = 0;
  int number_ = 0;
  bool failed_ = false;
};

}  // namespace agpcs
