// SPDX-License-Identifier: Apache-2.0
// The text of planner/default.policy. CMake writes the source that holds it
// (planner/default_policy.cmake).
#pragma once

#include <string_view>

namespace agpcs {

std::string_view default_policy_text();

}  // namespace agpcs
