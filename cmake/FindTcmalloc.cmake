# SPDX-License-Identifier: Apache-2.0
# Finds gperftools' tcmalloc (without its profiler) and defines Tcmalloc::Tcmalloc: a program that links it allocates by it.
find_library(TCMALLOC_LIBRARY tcmalloc_minimal)
mark_as_advanced(TCMALLOC_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Tcmalloc REQUIRED_VARS TCMALLOC_LIBRARY)

# No object of ours asks for malloc before the linker comes to the library, so it would leave it out.
if(Tcmalloc_FOUND AND NOT TARGET Tcmalloc::Tcmalloc)
  add_library(Tcmalloc::Tcmalloc INTERFACE IMPORTED)
  set_target_properties(Tcmalloc::Tcmalloc PROPERTIES
    INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--no-as-needed,${TCMALLOC_LIBRARY},--pop-state")
endif()
