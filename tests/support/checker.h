// SPDX-License-Identifier: Apache-2.0
// For tests whose output a Python program checks, which knows nothing of AGPCS.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>

namespace agpcs::testing {

struct CheckerSays {
  bool fine = false;  ///< it ended with exit code 0
  std::string output;
};

/// Runs the Python program `script` on a file with `text`, whose name ends in `ending`.
inline CheckerSays run_checker(const std::string& script, const std::string& text,
                               const std::string& ending) {
  const std::string path = ::testing::TempDir() +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name() + ending;
  std::ofstream(path) << text;
  const std::string command = "python3 " + script + " '" + path + "' 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  CheckerSays said;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    said.output.append(buffer.data(), n);
  }
  said.fine = pclose(pipe) == 0;
  std::remove(path.c_str());
  return said;
}

}  // namespace agpcs::testing
