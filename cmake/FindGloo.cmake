# SPDX-License-Identifier: Apache-2.0
# Finds Gloo and defines Gloo::Gloo.
find_path(GLOO_INCLUDE_DIR gloo/allreduce.h)
find_library(GLOO_LIBRARY gloo)
mark_as_advanced(GLOO_INCLUDE_DIR GLOO_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Gloo REQUIRED_VARS GLOO_LIBRARY GLOO_INCLUDE_DIR)

if(Gloo_FOUND AND NOT TARGET Gloo::Gloo)
  find_package(Threads REQUIRED)
  add_library(Gloo::Gloo UNKNOWN IMPORTED)
  set_target_properties(Gloo::Gloo PROPERTIES
    IMPORTED_LOCATION "${GLOO_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${GLOO_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
