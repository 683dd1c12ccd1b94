// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/tensor.h"

#include "frontend/onnx/dense.h"
#include "ir/base/read_file.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

namespace agpcs::frontend {

namespace fs = std::filesystem;
using onnx::TensorProto;

std::optional<DType> dtype_of(int onnx_type) {
  switch (onnx_type) {
    case TensorProto::FLOAT:
      return DType::kFp32;
    case TensorProto::FLOAT16:
      return DType::kFp16;
    case TensorProto::BFLOAT16:
      return DType::kBf16;
    case TensorProto::DOUBLE:
      return DType::kFp64;
    case TensorProto::INT64:
      return DType::kInt64;
    case TensorProto::INT32:
      return DType::kInt32;
    case TensorProto::INT16:
      return DType::kInt16;
    case TensorProto::INT8:
      return DType::kInt8;
    case TensorProto::UINT8:
      return DType::kUint8;
    case TensorProto::BOOL:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

std::string onnx_type_name(int onnx_type) {
  if (!TensorProto::DataType_IsValid(onnx_type)) return fmt::format("type {}", onnx_type);
  std::string name = TensorProto::DataType_Name(static_cast<TensorProto::DataType>(onnx_type));
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

bool is_external(const TensorProto& tensor) {
  return tensor.data_location() == TensorProto::EXTERNAL;
}

namespace {

template <typename T, typename Field>
std::vector<std::byte> narrowed(const Field& field) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(field.size()) * sizeof(T));
  for (int i = 0; i < field.size(); ++i) {
    const T value = static_cast<T>(field[i]);
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

std::vector<std::byte> typed_bytes(const TensorProto& tensor, DType type) {
  switch (type) {
    case DType::kFp32:
      return narrowed<float>(tensor.float_data());
    case DType::kFp64:
      return narrowed<double>(tensor.double_data());
    case DType::kInt64:
      return narrowed<std::int64_t>(tensor.int64_data());
    case DType::kInt32:
      return narrowed<std::int32_t>(tensor.int32_data());
    case DType::kFp16:
    case DType::kBf16:
    case DType::kInt16:
      return narrowed<std::uint16_t>(tensor.int32_data());
    case DType::kInt8:
    case DType::kUint8:
    case DType::kBool:
      return narrowed<std::uint8_t>(tensor.int32_data());
  }
  return {};
}

/// Returns the number of bytes that type and dims require, or an error.
Result<std::int64_t> expected_bytes(const TensorProto& tensor) {
  const std::optional<DType> type = dtype_of(tensor.data_type());
  if (!type) {
    return invalid_input(
        fmt::format("element type {} is not supported", onnx_type_name(tensor.data_type())));
  }
  const std::optional<std::int64_t> count =
      element_count({tensor.dims().begin(), tensor.dims().end()});
  if (!count) {
    return invalid_input(
        fmt::format("its dims are [{}], no extent may be negative and a tensor has at most 2^48 "
                    "elements\n  hint: the file may be damaged; export it again",
                    fmt::join(tensor.dims(), ",")));
  }
  return *count * static_cast<std::int64_t>(size_of(*type));
}

}  // namespace

Result<std::vector<std::byte>> inline_bytes(const TensorProto& tensor) {
  AGPCS_TRY(const std::int64_t expected, expected_bytes(tensor));
  std::vector<std::byte> bytes;
  if (tensor.has_raw_data()) {
    bytes.resize(tensor.raw_data().size());
    if (!bytes.empty()) std::memcpy(bytes.data(), tensor.raw_data().data(), bytes.size());
  } else {
    bytes = typed_bytes(tensor, *dtype_of(tensor.data_type()));
  }
  if (static_cast<std::int64_t>(bytes.size()) != expected) {
    return invalid_input(
        fmt::format("its dims call for {} bytes, the file has {}", expected, bytes.size()));
  }
  return bytes;
}

namespace {

Result<std::int64_t> number(const std::string& key, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return invalid_input(fmt::format("external data has {} '{}'", key, text));
  }
  return value;
}

/// Tells whether `path`, or its nearest existing ancestor, lies in `folder` after all symbolic
/// links are followed.
bool stays_inside(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  const fs::path root = fs::canonical(folder.empty() ? fs::path(".") : folder, error);
  if (error) return true;  // the folder does not exist, so it has no links
  const fs::path real = fs::weakly_canonical(root / path, error);
  if (error) return false;
  const fs::path relative = real.lexically_relative(root);
  return !relative.empty() && *relative.begin() != "..";
}

Status check_location(const std::string& location, const std::string& folder) {
  constexpr const char* kHint =
      "\n  hint: keep the weights in the model's folder and save the model with a relative "
      "location";
  const auto refuse = [&](std::string_view why) {
    return invalid_input(fmt::format("external data '{}' {}{}", location, why, kHint));
  };
  if (location.empty()) return refuse("has no location");
  if (location.find('\0') != std::string::npos) return refuse("has a zero byte in its location");
  const fs::path path(location);
  if (path.is_absolute()) return refuse("is an absolute path");
  for (const fs::path& part : path) {
    if (part == "..") return refuse("leaves the model's folder");
  }
  if (!folder.empty() && !stays_inside(folder, path)) {
    return refuse("is a symbolic link out of the model's folder");
  }
  return {};
}

}  // namespace

Result<ExternalData> external_data_of(const TensorProto& tensor, const std::string& folder) {
  AGPCS_TRY(const std::int64_t expected, expected_bytes(tensor));
  ExternalData data;
  data.length = expected;
  for (const auto& entry : tensor.external_data()) {
    if (entry.key() == "location") data.location = entry.value();
    if (entry.key() == "offset") {
      AGPCS_TRY(data.offset, number("offset", entry.value()));
    }
    if (entry.key() == "length") {
      AGPCS_TRY(data.length, number("length", entry.value()));
    }
  }
  AGPCS_RETURN_IF_ERROR(check_location(data.location, folder));
  if (data.length != expected) {
    return invalid_input(fmt::format("its dims call for {} bytes, its external data has length {}",
                                     expected, data.length));
  }
  if (data.offset > std::numeric_limits<std::int64_t>::max() - data.length) {
    return invalid_input(
        fmt::format("external data has offset '{}' and length {}, which is beyond "
                    "any file",
                    data.offset, data.length));
  }
  return data;
}

Result<std::optional<std::vector<std::byte>>> read_external(const ExternalData& data,
                                                            const std::string& folder) {
  const fs::path path = fs::path(folder) / data.location;
  std::error_code error;
  if (!fs::exists(path, error)) return std::optional<std::vector<std::byte>>();
  AGPCS_TRY(const InputFile file, InputFile::open(path.string(), kExternalDataNoun));
  if (file.size() < data.length || file.size() - data.length < data.offset) {
    return invalid_input(
        fmt::format("'{}' has {} bytes, the model needs bytes {} to {} of it\n"
                    "  hint: the file may be cut short; copy or export it again",
                    path.string(), file.size(), data.offset, data.offset + data.length));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(data.length));
  AGPCS_RETURN_IF_ERROR(file.read(data.offset, bytes.data(), bytes.size()));
  return std::optional(std::move(bytes));
}

}  // namespace agpcs::frontend
