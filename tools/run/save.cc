// SPDX-License-Identifier: Apache-2.0
#include "tools/run/save.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <unistd.h>
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

Status write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& dims,
                 const std::vector<float>& values) {
  std::ofstream file(path, std::ios::binary);
  file << npy_header(dims);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.close();
  if (!file) return invalid_input(fmt::format("{}: cannot be written", path.string()));
  return {};
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

Status save_parameters(const Graph& graph, const Plan& plan, int rank,
                       const TorchExecutor& executor, const std::string& folder) {
  const auto stage = static_cast<std::size_t>(plan.stage_of_rank(rank));
  if (plan.stages[stage].ranks.front() != rank) return {};
  for (const std::string& name : executor.names()) {
    AGPCS_TRY(const std::vector<float> values, executor.value(name));
    const auto dims = dims_at(graph.tensor(graph.find_tensor(name)).shape, 0);
    AGPCS_RETURN_IF_ERROR(
        write_npy(std::filesystem::path(folder) / file_name_of(name), dims, values));
  }
  return {};
}

}  // namespace agpcs
