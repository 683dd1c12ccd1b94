// SPDX-License-Identifier: Apache-2.0
// The one reader of files. It refuses devices and files that the kernel makes up (procfs, sysfs),
// and files that are longer than their kind may be.
#pragma once

#include "ir/base/fd.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace agpcs {

/// The most bytes that a text file (a plan, a policy, a log) may have.
inline constexpr std::int64_t kMostTextBytes = std::int64_t{64} << 20;

/// The kind of file that is expected, for checks and messages.
struct InputKind {
  std::string_view noun;  ///< "plan", for "it is a directory, not a plan"
  std::int64_t most_bytes = kMostTextBytes;
  std::string_view hint = {};  ///< for a file that is longer
};

/// Reads all bytes of a file or a pipe that the user named. Errors (kInvalidInput) name the file
/// and say what it is and what was expected, or how long it is and how long it may be. A file that
/// is too long by its size is not read at all.
Result<std::string> read_file(const std::string& path, const InputKind& kind);

/// Reads all bytes of standard input, whatever it is connected to; messages call it "-".
Result<std::string> read_standard_input(const InputKind& kind);

/// An open file whose parts can be read in any order. It serves the folders of checkpoints and
/// models, which hold regular files only.
class InputFile {
 public:
  /// Opens a file without ever waiting: it refuses a pipe as it refuses a device. `noun` describes
  /// the file in messages, say "file of a checkpoint". Errors: kInvalidInput, as for `read_file`.
  static Result<InputFile> open(const std::string& path, std::string_view noun);
  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  /// Reads exactly `bytes` bytes from `offset` on. Errors (kInvalidInput): the file ends before.
  Status read(std::int64_t offset, void* out, std::size_t bytes) const;
  /// Reads the whole file.
  Result<std::string> read_all(const InputKind& kind) const;

 private:
  InputFile(std::string path, Fd fd, std::int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}
  std::string path_;
  Fd fd_;
  std::int64_t size_;
};

}  // namespace agpcs
