# SPDX-License-Identifier: Apache-2.0
# Makes policies that ship with AGPCS part of the program: writes `source`, which holds the text of `file` as the
# function that planner/`header` declares; again whenever the file changes.
function(agpcs_embed_policy file source header function)
  set(path "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  file(READ "${path}" text)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
#include "planner/@header@"

namespace agpcs {

std::string_view @function@() {
  return R"policy(@text@)policy";
}

}  // namespace agpcs
]])
endfunction()

agpcs_embed_policy(default.policy default_policy.cc default_policy.h default_policy_text)
agpcs_embed_policy(flow.policy flow_policy_text.cc flow_policy_text.h flow_policy_text)
