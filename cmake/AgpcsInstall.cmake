# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` installs: the lean libraries with their headers, the commands, and a package for
# find_package(agpcs).
include_guard(GLOBAL)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(agpcs_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/agpcs")

# Makes library `name` part of the package.
function(agpcs_install_library name)
  target_include_directories(agpcs_${name} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  install(TARGETS agpcs_${name} EXPORT agpcs-targets ARCHIVE COMPONENT dev LIBRARY COMPONENT dev)
  set_property(GLOBAL APPEND PROPERTY AGPCS_INSTALLED ${name})
endfunction()

# Installs the headers of `folders`, <folder>/include.
function(agpcs_install_headers)
  foreach(folder IN LISTS ARGN)
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}/include/" TYPE INCLUDE COMPONENT dev FILES_MATCHING PATTERN "*.h")
  endforeach()
endfunction()

# Writes the package once every library has been declared.
function(agpcs_install_package)
  get_property(AGPCS_INSTALLED GLOBAL PROPERTY AGPCS_INSTALLED)
  if(NOT AGPCS_INSTALLED)
    return()
  endif()
  configure_package_config_file(cmake/agpcs-config.cmake.in "${PROJECT_BINARY_DIR}/agpcs-config.cmake"
    INSTALL_DESTINATION "${agpcs_package_dir}")
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/agpcs-config-version.cmake" COMPATIBILITY SameMinorVersion)
  install(EXPORT agpcs-targets NAMESPACE agpcs:: DESTINATION "${agpcs_package_dir}" COMPONENT dev)
  install(FILES
    "${PROJECT_BINARY_DIR}/agpcs-config.cmake" "${PROJECT_BINARY_DIR}/agpcs-config-version.cmake"
    cmake/FindGloo.cmake cmake/FindTorch.cmake cmake/FindNCCL.cmake
    DESTINATION "${agpcs_package_dir}" COMPONENT dev)
endfunction()
