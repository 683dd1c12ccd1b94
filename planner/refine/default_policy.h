// SPDX-License-Identifier: Apache-2.0
// The text of planner/refine/default.policy. CMake writes the source that holds it
// (planner/policy/embed.cmake).
#pragma once

#include <string_view>

namespace agpcs {

std::string_view default_policy_text();

}  // namespace agpcs
