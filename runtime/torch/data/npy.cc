// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

namespace agpcs {
namespace {

// Returns the text after `'key':` in the header's Python dictionary, without leading spaces.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key) {
  const std::string quoted = fmt::format("'{}':", key);
  const std::size_t at = header.find(quoted);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = header.substr(at + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

std::optional<DType> type_of(std::string_view descr) {
  struct Entry {
    std::string_view descr;
    DType type;
  };
  static constexpr Entry kTypes[] = {
      {"<f4", DType::kFp32},  {"<f2", DType::kFp16},  {"<f8", DType::kFp64},
      {"<i8", DType::kInt64}, {"<i4", DType::kInt32}, {"<i2", DType::kInt16},
      {"|i1", DType::kInt8},  {"|u1", DType::kUint8}, {"|b1", DType::kBool}};
  for (const Entry& entry : kTypes) {
    if (entry.descr == descr) return entry.type;
  }
  return std::nullopt;
}

// Parses "(3, 4), ..." to {3, 4}; returns nothing if it is not a tuple of whole numbers.
std::optional<std::vector<std::int64_t>> parse_tuple(std::string_view text) {
  const std::size_t end = text.find(')');
  if (text.empty() || text[0] != '(' || end == std::string_view::npos) return std::nullopt;
  std::vector<std::int64_t> dims;
  std::string_view rest = text.substr(1, end - 1);
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" ,"), rest.size()));
    if (rest.empty()) return dims;
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    dims.push_back(value);
    rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
  }
}

}  // namespace

Result<NpyFile> NpyFile::open(const std::string& path) {
  AGPCS_TRY(InputFile opened, InputFile::open(path, ".npy file"));
  const std::int64_t size = opened.size();
  NpyFile file(path, std::move(opened), 0, size);
  AGPCS_RETURN_IF_ERROR(file.read_header());
  return file;
}

Result<NpyFile> NpyFile::open_in(const std::string& path, const StoredFile& part) {
  AGPCS_TRY(InputFile opened, InputFile::open(path, ".npz file"));
  NpyFile file(path + "/" + part.name, std::move(opened), part.offset, part.bytes);
  AGPCS_RETURN_IF_ERROR(file.read_header());
  return file;
}

Status NpyFile::read_header() {
  std::array<char, 12> start{};
  AGPCS_RETURN_IF_ERROR(
      file_.read(begin_, start.data(), std::min(static_cast<std::size_t>(bytes_), start.size())));
  if (bytes_ < 10 || std::memcmp(start.data(), "\x93NUMPY", 6) != 0) {
    const bool archive = bytes_ >= 2 && start[0] == 'P' && start[1] == 'K';
    return invalid_input(
        fmt::format("{}: not a .npy file\n  hint: {}", path(),
                    archive ? "--data FILE.npz feeds the inputs that its arrays are named by"
                            : "write it with numpy.save"));
  }
  const int version = start[6];
  if (version < 1 || version > 3) {
    return invalid_input(fmt::format("{}: .npy version {}, expected 1 to 3", path(), version));
  }
  const auto byte = [&start](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(start[i]));
  };
  const std::int64_t before = version > 1 ? 12 : 10;
  std::size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > (std::size_t{1} << 20))
    return invalid_input(fmt::format("{}: header of {} bytes", path(), length));
  data_offset_ = static_cast<std::size_t>(before) + length;
  if (data_offset_ > static_cast<std::size_t>(bytes_)) {
    return invalid_input(fmt::format("{}: ends within its header", path()));
  }
  std::string header(length, '\0');
  AGPCS_RETURN_IF_ERROR(file_.read(begin_ + before, header.data(), length));
  AGPCS_RETURN_IF_ERROR(parse_header(header));
  return check_size();
}

Status NpyFile::parse_header(const std::string& header) {
  const auto descr = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             shape = value_of(header, "shape");
  if (!descr || !order || !shape) {
    return invalid_input(fmt::format("{}: header without descr, fortran_order or shape", path()));
  }
  const std::string_view quoted = descr->substr(0, descr->find(','));
  const auto type = quoted.size() < 2 ? std::nullopt : type_of(quoted.substr(1, quoted.size() - 2));
  if (!type) {
    return invalid_input(fmt::format(
        "{}: element type {}\n  hint: little-endian f2, f4, f8, i1, i2, i4, i8, u1 and b1 "
        "are read; convert with numpy's astype",
        path(), quoted));
  }
  if (order->substr(0, 5) != "False") {
    return invalid_input(
        fmt::format("{}: Fortran order\n  hint: save numpy.ascontiguousarray(a)", path()));
  }
  const auto dims = parse_tuple(*shape);
  if (!dims)
    return invalid_input(fmt::format("{}: header's shape is not a tuple of whole numbers", path()));
  type_ = *type;
  shape_ = *dims;
  return {};
}

Status NpyFile::check_size() {
  std::size_t row = size_of(type_);
  for (std::size_t axis = 1; axis < shape_.size(); ++axis) {
    if (__builtin_mul_overflow(row, static_cast<std::size_t>(shape_[axis]), &row)) {
      return invalid_input(fmt::format("{}: shape is too large", path()));
    }
  }
  row_bytes_ = row;
  std::size_t needed = 0;
  if (__builtin_mul_overflow(row, static_cast<std::size_t>(rows()), &needed)) {
    return invalid_input(fmt::format("{}: shape is too large", path()));
  }
  const std::size_t held = static_cast<std::size_t>(bytes_) - data_offset_;
  if (held >= needed) return {};
  return invalid_input(
      fmt::format("{}: holds {} bytes of values, its shape needs {}\n  hint: the file is truncated",
                  path(), held, needed));
}

Status NpyFile::read_rows(std::int64_t first, std::int64_t count, void* out) const {
  const std::size_t offset = data_offset_ + static_cast<std::size_t>(first) * row_bytes_;
  return file_.read(begin_ + static_cast<std::int64_t>(offset), out,
                    static_cast<std::size_t>(count) * row_bytes_);
}

}  // namespace agpcs
