// SPDX-License-Identifier: Apache-2.0
// For tests of agpcs-plan's command line.
#pragma once

#include "tests/support/temp_folder.h"
#include "tools/plan/command.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct PlanSays {
  int code;
  std::string out, err;
};

inline PlanSays run(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const int code = plan_command(args, {out, err});
  return {code, out.str(), err.str()};
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A folder for the files of one test, which goes away with it.
class WithFolder : public ::testing::Test {
 protected:
  std::string write_temporary(const std::string& name, std::string_view text) const {
    std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  const TempFolder temp_;
  std::string folder_ = temp_.path();
};

}  // namespace agpcs
