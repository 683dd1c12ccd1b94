// SPDX-License-Identifier: Apache-2.0
// Small questions about plans, verified or not.
#pragma once

#include <agpcs/plan.h>

#include <string>
#include <vector>

namespace agpcs {

/// Whether a gradient of one of the cut's tensors travels back.
bool has_gradient(const Cut& cut);

/// "volta/1": the device of each rank; empty for one that no stage has.
std::vector<std::string> devices_of_ranks(const Plan& plan);

}  // namespace agpcs
