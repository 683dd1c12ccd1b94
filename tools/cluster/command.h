// SPDX-License-Identifier: Apache-2.0
// agpcs-cluster: describes the hosts that it runs on, and checks descriptions.
#pragma once

#include "tools/common/common.h"

#include <string>
#include <vector>

namespace agpcs {

/// Runs agpcs-cluster with `args` (without the program's name) and returns its exit code.
int cluster_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
