// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/common/common.h"

#include <string>
#include <vector>

namespace agpcs {

/// Runs agpcs-run: all ranks here (--local, or --transport loopback), or one rank of a launcher's
/// job.
int run_job_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
