// SPDX-License-Identifier: Apache-2.0
// The one reader of files. It never reads devices, nor files that the kernel makes up (procfs,
// sysfs), and of no file more than its kind may have.
#pragma once

#include "ir/fd.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace agpcs {

/// The most bytes of a text: a plan, a policy, a log.
inline constexpr std::int64_t kMostTextBytes = std::int64_t{64} << 20;

/// What a file should be.
struct InputKind {
  std::string_view noun;  ///< "plan", for "it is a directory, not a plan"
  std::int64_t most_bytes = kMostTextBytes;
  std::string_view hint = {};  ///< for one that is longer
};

/// The bytes of a file or a pipe that the user named. kInvalidInput names it, and says what it is
/// and what was expected, or how long it is and how long it may be. What is too long by its size is
/// not read at all.
Result<std::string> read_file(const std::string& path, const InputKind& kind);

/// The bytes of standard input, whatever that is; "-" in messages.
Result<std::string> read_standard_input(const InputKind& kind);

/// An open file, to be read here and there: in the folder of a checkpoint or of a model, where
/// nothing else belongs.
class InputFile {
 public:
  /// Never waits: a pipe is refused as a device is. kInvalidInput as for `read_file`; `noun`: "file
  /// of a checkpoint".
  static Result<InputFile> open(const std::string& path, std::string_view noun);
  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  /// Exactly `bytes` from `offset` on. kInvalidInput where the file ends before.
  Status read(std::int64_t offset, void* out, std::size_t bytes) const;
  /// All of it.
  Result<std::string> read_all(const InputKind& kind) const;

 private:
  InputFile(std::string path, Fd fd, std::int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}
  std::string path_;
  Fd fd_;
  std::int64_t size_;
};

}  // namespace agpcs
