// SPDX-License-Identifier: Apache-2.0
// The text of planner/flows/policy/flow.policy. CMake writes the source that holds it
// (planner/policy/embed.cmake).
#pragma once

#include <string_view>

namespace agpcs {

std::string_view flow_policy_text();

}  // namespace agpcs
