# SPDX-License-Identifier: Apache-2.0
# Makes a file that ships with AGPCS, such as a policy, part of the program: writes `source`, which holds the text of `file`
# as the function that `header` declares; again whenever the file changes.
include_guard(GLOBAL)

function(agpcs_embed_text file source header function)
  set(path "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  file(READ "${path}" text)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
#include "@header@"

namespace agpcs {

std::string_view @function@() {
  return R"text(@text@)text";
}

}  // namespace agpcs
]])
endfunction()
