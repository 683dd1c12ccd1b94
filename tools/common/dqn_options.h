// SPDX-License-Identifier: Apache-2.0
// The settings of the DQN as options of a command.
#pragma once

#include "planner/refine/dqn.h"

#include <agpcs/status.h>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
}

namespace agpcs {

inline constexpr const char* kDqnGroup = "DQN";

/// Adds one option for each value of `options` in the group `kDqnGroup`, with that value as its
/// default.
void add_dqn_options(CLI::App& app, DqnOptions& options);
/// Checks that the options go together. Errors: kUsage.
Status check_dqn_options(const DqnOptions& options);

}  // namespace agpcs
