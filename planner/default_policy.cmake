# SPDX-License-Identifier: Apache-2.0
# Makes the policy that ships with AGPCS part of the program: writes default_policy.cc, again whenever the policy
# changes.
set(default_policy "${CMAKE_CURRENT_SOURCE_DIR}/default.policy")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${default_policy}")
file(READ "${default_policy}" default_policy_text)
file(CONFIGURE OUTPUT default_policy.cc @ONLY CONTENT [[
#include "planner/default_policy.h"

namespace agpcs {

std::string_view default_policy_text() {
  return R"policy(@default_policy_text@)policy";
}

}  // namespace agpcs
]])
