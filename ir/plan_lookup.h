// SPDX-License-Identifier: Apache-2.0
// Small questions about plans, verified or not.
#pragma once

#include <agpcs/plan.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Whether a gradient of one of the cut's tensors travels back.
bool has_gradient(const Cut& cut);

/// "volta/1": the device of each rank; empty for one that no stage has.
std::vector<std::string> devices_of_ranks(const Plan& plan);

/// What the plan expects by that name ("step", "send volta/1"); null: nothing.
const Expectation* find_expectation(const Plan& plan, std::string_view name);
/// Its value; 0: nothing is expected.
double expected(const Plan& plan, std::string_view name);

}  // namespace agpcs
