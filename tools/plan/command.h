// SPDX-License-Identifier: Apache-2.0
// agpcs-plan: checks, prints, compares, explains and exports plans.
#pragma once

#include "tools/common/common.h"

#include <string>
#include <vector>

namespace agpcs {

/// Runs agpcs-plan with `args` (without the program's name) and returns its exit code.
int plan_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
