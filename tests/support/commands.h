// SPDX-License-Identifier: Apache-2.0
// Where the commands of this build are.
#pragma once

#include <filesystem>
#include <string>

namespace agpcs {

/// Returns the path of command `name`: bin/<name> of the build folder, whose tests/ has this test.
inline std::string command_path(const std::string& name) {
  const std::filesystem::path test = std::filesystem::read_symlink("/proc/self/exe");
  return test.parent_path().parent_path() / "bin" / name;
}

}  // namespace agpcs
