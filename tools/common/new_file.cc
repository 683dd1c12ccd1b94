// SPDX-License-Identifier: Apache-2.0
#include "tools/common/new_file.h"

#include "ir/base/random_digits.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <unistd.h>

namespace agpcs {

std::string temporary_beside(const std::string& path) {
  const std::string digits = random_digits();
  return digits.empty() ? "" : fmt::format("{}.{}.tmp", path, digits);
}

Status check_can_be_written(const std::string& path) {
  namespace fs = std::filesystem;
  if (path == "-") return {};
  std::error_code none;
  const fs::file_status there = fs::status(path, none);
  const fs::path folder = fs::path(path).parent_path() / ".";
  int error = 0;
  if (fs::is_directory(there)) {
    error = EISDIR;
  } else if (fs::exists(there) && !fs::is_regular_file(there)) {
    if (access(path.c_str(), W_OK) != 0) error = errno;
  } else if (access(folder.c_str(), W_OK | X_OK) != 0) {
    error = errno;
  }
  if (error == 0) return {};
  return invalid_input(fmt::format("{}: error: cannot be written: {}", path, std::strerror(error)));
}

}  // namespace agpcs
