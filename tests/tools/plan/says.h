// SPDX-License-Identifier: Apache-2.0
// For tests of agpcs-plan's command line.
#pragma once

#include "tools/plan/command.h"

#include <sstream>
#include <string>
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

}  // namespace agpcs
