// SPDX-License-Identifier: Apache-2.0
// agpcs-allreduce: schedules the flows of an all-reduce on a topology or a cluster.
#pragma once

#include "tools/common/common.h"

#include <string>
#include <vector>

namespace agpcs {

/// Runs agpcs-allreduce with `args` (without the program's name) and returns its exit code.
int allreduce_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
