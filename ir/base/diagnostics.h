// SPDX-License-Identifier: Apache-2.0
// Diagnostics: user errors with file, line, column, caret and hint. They are collected, then
// printed once.
#pragma once

#include <agpcs/status.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// A place in a text file. `line` and `column` count from 1; 0 means unknown. `length` is the
/// number of characters to underline.
struct SourceRange {
  int line = 0;
  int column = 0;
  int length = 1;
};

/// Collects errors and warnings of one input. A message is in lower case, has no full stop, and
/// names both the value found and the values expected.
///
///     cluster.yaml:14:11: error: unknown link kind 'nvlnik'
///         kind: nvlnik
///               ^~~~~~
///       hint: did you mean 'nvlink'? kinds: nvlink, pcie, ib, tcp
class Diagnostics {
 public:
  /// `source` is the text that carets point into; it is empty for a binary input.
  explicit Diagnostics(std::string file, std::string source = {});

  void error(SourceRange where, std::string message, std::string hint = {});
  void warning(SourceRange where, std::string message, std::string hint = {});
  /// Reports about an input that has no lines: "model.onnx: node 42 'fc1/MatMul': error: ...".
  void error_at(std::string_view what, std::string message, std::string hint = {});
  void warning_at(std::string_view what, std::string message, std::string hint = {});

  /// Adds the errors of another input that this one needs, unchanged.
  void include(const Status& failure);

  bool ok() const { return errors_ == 0; }
  std::size_t error_count() const { return errors_; }
  /// Returns the messages in their order, ready to print: of each kind 20, and how many more.
  std::string text() const;
  /// Returns the warnings alone, for a command that continues.
  std::string warnings() const;
  /// Returns ok, or kInvalidInput with `text()`.
  Status status() const;

 private:
  struct Entry {
    bool is_error;
    std::string text;
  };
  void add(bool is_error, const std::string& place, SourceRange where, const std::string& message,
           const std::string& hint);

  std::string file_;
  std::vector<std::string> lines_;
  std::vector<Entry> entries_;
  std::size_t errors_ = 0;
};

/// Returns the candidate with the least edit distance to `word`, or "" when no candidate is near
/// enough (distance at most max(1, length / 3)).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Returns "did you mean 'nvlink'? kinds: nvlink, pcie", or "kinds: nvlink, pcie" when no candidate
/// is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         std::string_view plural);

}  // namespace agpcs
