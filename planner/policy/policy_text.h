// SPDX-License-Identifier: Apache-2.0
// The text of policy files (docs/policy.md): what both formats share.
#pragma once

#include "ir/diagnostics.h"
#include "planner/perceptron.h"

#include <agpcs/status.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// `features`, `units`, then one line a row, each number the shortest that reads back as the same
/// float.
std::string print_perceptron(const Perceptron& network);

/// Reads a policy line by line. The first error ends it: then every call returns false.
class PolicyReader {
 public:
  PolicyReader(std::string_view text, std::string_view file);

  /// The first two lines: `magic` and its version, `made-by`.
  bool read_head(std::string_view magic, int version, std::string& made_by);
  /// A line that says `key word`.
  bool read_word(std::string_view key, std::string_view word);
  /// `judged`: what the network judges, in the plural: "moves".
  bool read_perceptron(int features, std::string_view judged, Perceptron& network);
  /// Nothing may follow `last`.
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
