// SPDX-License-Identifier: Apache-2.0
// A reader of NumPy's .npy files, versions 1 to 3, C order, little-endian, also in .npz archives.
#pragma once

#include "ir/base/read_file.h"
#include "runtime/support/stored_zip.h"

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// An open .npy file. Rows are read on demand, so that a file may be larger than memory.
class NpyFile {
 public:
  /// Opens a file. Errors: it is missing, a pipe or a device, not a .npy file, in Fortran
  /// order, big-endian, of an element type outside DType, or shorter than its shape says (names
  /// both sizes).
  static Result<NpyFile> open(const std::string& path);

  /// Opens a file of the archive at `path`, whose name in it is `part.name`.
  static Result<NpyFile> open_in(const std::string& path, const StoredFile& part);

  /// Returns the file's name for messages: "labels.npy", or "train.npz/labels.npy" in an archive.
  const std::string& path() const { return path_; }
  DType type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t rows() const { return shape_.empty() ? 1 : shape_[0]; }
  std::size_t row_bytes() const { return row_bytes_; }
  /// Reads rows [first, first + count) along axis 0. Needs: they lie within the file.
  Status read_rows(std::int64_t first, std::int64_t count, void* out) const;

 private:
  NpyFile(std::string path, InputFile file, std::int64_t begin, std::int64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), begin_(begin), bytes_(bytes) {}
  Status read_header();
  Status parse_header(const std::string& header);
  Status check_size();

  std::string path_;
  InputFile file_;
  std::int64_t begin_ = 0, bytes_ = 0;  // where it lies in `file_`
  std::size_t data_offset_ = 0;         // from `begin_`
  DType type_ = DType::kFp32;
  std::vector<std::int64_t> shape_;
  std::size_t row_bytes_ = 0;
};

}  // namespace agpcs
