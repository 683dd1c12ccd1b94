// SPDX-License-Identifier: Apache-2.0
// Diagnostics: user errors with file, line, column, caret and hint, collected and printed once.
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

/// Collects errors and warnings of one input. Lower case, no full stop, both values.
///
///     cluster.yaml:14:11: error: unknown link kind 'nvlnik'
///         kind: nvlnik
///               ^~~~~~
///       hint: did you mean 'nvlink'? kinds: nvlink, pcie, ib, tcp
class Diagnostics {
 public:
  /// `source` is the text that carets point into; empty for a binary input.
  explicit Diagnostics(std::string file, std::string source = {});

  void error(SourceRange where, std::string message, std::string hint = {});
  void warning(SourceRange where, std::string message, std::string hint = {});
  /// For inputs without lines: "model.onnx: node 42 'fc1/MatMul': error: ...".
  void error_at(std::string_view what, std::string message, std::string hint = {});
  void warning_at(std::string_view what, std::string message, std::string hint = {});

  /// Errors of another input that this one needs, as they are.
  void include(const Status& failure);

  bool ok() const { return errors_ == 0; }
  std::size_t error_count() const { return errors_; }
  /// All messages in order of report, ready to print.
  std::string text() const;
  /// Warnings alone, for a command that goes on.
  std::string warnings() const;
  /// Ok, or kInvalidInput with `text()`.
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

/// The candidate with the least edit distance to `word`, or "" when none is near enough
/// (distance at most max(1, length / 3)).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "did you mean 'nvlink'? kinds: nvlink, pcie" or, with nothing near, "kinds: nvlink, pcie".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         std::string_view plural);

}  // namespace agpcs
