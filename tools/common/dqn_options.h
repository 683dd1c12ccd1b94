// SPDX-License-Identifier: Apache-2.0
// The settings of the DQN as options of a command.
#pragma once

#include "planner/dqn.h"

#include <agpcs/status.h>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
}

namespace agpcs {

inline constexpr const char* kDqnGroup = "DQN";

/// One option for each value of `options`, in the group `kDqnGroup`, with its value as default.
void add_dqn_options(CLI::App& app, DqnOptions& options);
/// kUsage where they do not go together.
Status check_dqn_options(const DqnOptions& options);

}  // namespace agpcs
