// SPDX-License-Identifier: Apache-2.0
#include "tools/run/save.h"

#include "runtime/job/state_moves.h"
#include "tools/common/common.h"
#include "tools/run/gathering.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

static_assert(std::endian::native == std::endian::little, ".npy files are written as they lie");

// Returns a header in NumPy's format, version 1.0: magic, length of the header, header padded to 64
// bytes.
std::string npy_header(const std::vector<std::int64_t>& dims) {
  std::string shape;
  for (const std::int64_t dim : dims) shape += fmt::format("{},", dim);
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", shape);
  constexpr std::size_t kPrefix = 10, kAlignment = 64;
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out.push_back(static_cast<char>(header.size() & 0xff));
  out.push_back(static_cast<char>(header.size() >> 8));
  return out + header;
}

Status write_npy(const std::filesystem::path& path, const std::string& text) {
  const std::error_code error = replace_file(path.string(), text);
  if (!error) return {};
  return invalid_input(
      fmt::format("{}: error: cannot be written: {}", path.string(), error.message()));
}

// Returns the header, and `count` values of type T behind it as fp32.
template <typename T>
std::string converted(std::string_view text, std::size_t header, std::size_t count) {
  std::string made(text.substr(0, header));
  made.reserve(header + count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    std::memcpy(&value, text.data() + header + i * sizeof(T), sizeof(T));
    const auto single = static_cast<float>(value);
    made.append(reinterpret_cast<const char*>(&single), sizeof single);
  }
  return made;
}

/// Returns the text of a tensor's file. In `text`, its words follow the header: values, or of
/// integers and fp64 bytes in memory.
std::string in_fp32(const Tensor& tensor, std::string text, std::size_t header) {
  const auto count = static_cast<std::size_t>(elements_at(tensor.shape, 0));
  switch (tensor.type) {
    case DType::kFp64:
      return converted<double>(text, header, count);
    case DType::kInt64:
      return converted<std::int64_t>(text, header, count);
    case DType::kInt32:
      return converted<std::int32_t>(text, header, count);
    case DType::kInt16:
      return converted<std::int16_t>(text, header, count);
    case DType::kInt8:
      return converted<std::int8_t>(text, header, count);
    case DType::kUint8:
    case DType::kBool:
      return converted<std::uint8_t>(text, header, count);
    case DType::kFp32:
    case DType::kFp16:
    case DType::kBf16:
      break;
  }
  return text;
}

}  // namespace

std::string file_name_of(std::string_view tensor) {
  std::string name;
  for (const char c : tensor) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || c == '.' || c == '_' || c == '-';
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return name + ".npy";
}

Status make_save_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return invalid_input(fmt::format("{}: cannot be made: {}", folder, error.message()));
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return invalid_input(fmt::format("{}: cannot be written to", folder));
  }
  return {};
}

Status save_parameters(const Graph& graph, const Plan& plan, const Executor& executor,
                       const std::string& folder, Transport& transport,
                       std::chrono::milliseconds limit) {
  AGPCS_TRY(const StateOwners owners, share_state_owners(executor.state(), transport, limit));
  AGPCS_TRY(std::vector<StateMove> moves, gathering(owners));
  std::erase_if(moves, [](const StateMove& move) { return move.item.slot != kValueSlot; });
  for (StateMove& move : moves) {
    const auto stage = static_cast<std::size_t>(plan.stage_of_rank(move.from));
    move.to = plan.stages[stage].ranks.front();
  }
  const auto read = [&](const StateItem& item, std::int64_t first, std::int64_t count, float* out) {
    return executor.read_state(item, first, count, out);
  };
  std::string text;  // of the file of the tensor that is on its way
  std::size_t header = 0;
  const auto write = [&](const StateItem& item, std::int64_t first, std::int64_t count,
                         const float* values) -> Status {
    const Tensor& tensor = graph.tensor(graph.find_tensor(item.tensor));
    if (first == 0) {
      text = npy_header(dims_at(tensor.shape, 0));
      header = text.size();
      text.reserve(header + static_cast<std::size_t>(item.elements) * sizeof(float));
    }
    text.append(reinterpret_cast<const char*>(values),
                static_cast<std::size_t>(count) * sizeof(float));
    if (first + count < item.elements) return {};
    return write_npy(std::filesystem::path(folder) / file_name_of(item.tensor),
                     in_fp32(tensor, std::move(text), header));
  };
  return carry_state(moves, read, writing_wholes(write), transport, limit);
}

}  // namespace agpcs
