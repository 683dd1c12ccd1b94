// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/common/common.h"

#include <string>
#include <vector>

namespace agpcs {

/// Runs agpcs-profile: measures this machine's device or all devices of a cluster, merges profiles,
/// or shows one.
int profile_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
