// SPDX-License-Identifier: Apache-2.0
// A reader of NumPy's .npy files, versions 1 to 3, C order, little-endian.
#pragma once

#include "ir/base/read_file.h"

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

  const std::string& path() const { return file_.path(); }
  DType type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t rows() const { return shape_.empty() ? 1 : shape_[0]; }
  std::size_t row_bytes() const { return row_bytes_; }
  /// Reads rows [first, first + count) along axis 0. Needs: they lie within the file.
  Status read_rows(std::int64_t first, std::int64_t count, void* out) const;

 private:
  explicit NpyFile(InputFile file) : file_(std::move(file)) {}
  Status parse_header(const std::string& header);
  Status check_size();

  InputFile file_;
  std::size_t data_offset_ = 0;
  DType type_ = DType::kFp32;
  std::vector<std::int64_t> shape_;
  std::size_t row_bytes_ = 0;
};

}  // namespace agpcs
