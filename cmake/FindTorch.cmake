# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch by its own package and defines Torch::Torch, whatever targets that package's version happens to define.
# Its messages and warnings about parts that it was built without are held back.
set(agpcs_torch_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch CONFIG QUIET)
set(CMAKE_MESSAGE_LOG_LEVEL "${agpcs_torch_log_level}")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Torch REQUIRED_VARS TORCH_LIBRARIES TORCH_INCLUDE_DIRS)

if(Torch_FOUND AND NOT TARGET Torch::Torch)
  add_library(Torch::Torch INTERFACE IMPORTED)
  set_target_properties(Torch::Torch PROPERTIES INTERFACE_LINK_LIBRARIES "${TORCH_LIBRARIES}")
  # LibTorch 2 has headers of an fmt of its own, without the library, before the system's.
  foreach(folder IN LISTS TORCH_INCLUDE_DIRS)
    if(EXISTS "${folder}/fmt/format.h")
      set_target_properties(Torch::Torch PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
    endif()
  endforeach()
endif()
