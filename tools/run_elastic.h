// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/common.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// As `run_local`, but where ranks are lost (killed, or stopped), plans for the devices of the
/// others, writes that plan beside the old one, and starts these ranks again from the last
/// checkpoint: as often as it takes, while a rank is left. Ranks that fail by themselves would fail
/// again: they end the job. Needs --replan and --save.
Status run_elastic(const Plan& plan, const RunOptions& options,
                   const std::vector<std::string>& args, Console console);

/// The command line of the ranks that go on by plan `next`: `args` with `next` in place of `plan`,
/// and resumed from `checkpoints`.
std::vector<std::string> resumed_args(const std::vector<std::string>& args, const std::string& plan,
                                      const std::string& next, const std::string& checkpoints);

}  // namespace agpcs
