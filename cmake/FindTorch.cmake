# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch by its own package and defines Torch::Torch, whatever targets that package's version happens to define.
# Its messages and warnings about parts that it was built without are held back. TORCH_HAS_GLOO tells whether it exports
# a Gloo of its own, as PyPI's does: another one in the same process would take its place.

# A LibTorch built with CUDA asks for CUDA's toolkit, and its umbrella library loads all that it has for GPUs. With
# AGPCS_WITH_CUDA OFF, its CPU part is taken as it lies beside the package.
find_path(AGPCS_TORCH_CONFIG TorchConfig.cmake HINTS ${Torch_DIR} ${CMAKE_PREFIX_PATH}
  PATH_SUFFIXES Torch share/cmake/Torch NO_DEFAULT_PATH)
mark_as_advanced(AGPCS_TORCH_CONFIG)
cmake_path(SET agpcs_torch_root NORMALIZE "${AGPCS_TORCH_CONFIG}/../../../lib")
cmake_path(GET agpcs_torch_root PARENT_PATH agpcs_torch_root)
set(agpcs_torch_include "")
if(AGPCS_TORCH_CONFIG AND "${AGPCS_WITH_CUDA}" STREQUAL "OFF" AND EXISTS "${agpcs_torch_root}/lib/libtorch_cuda.so")
  set(TORCH_LIBRARY "${agpcs_torch_root}/lib/libtorch_cpu.so")
  set(TORCH_LIBRARIES "${TORCH_LIBRARY}" "${agpcs_torch_root}/lib/libc10.so")
  set(TORCH_INCLUDE_DIRS "${agpcs_torch_root}/include" "${agpcs_torch_root}/include/torch/csrc/api/include")
  set(agpcs_torch_include "${TORCH_INCLUDE_DIRS}")
else()
  set(agpcs_torch_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch CONFIG QUIET)
  set(CMAKE_MESSAGE_LOG_LEVEL "${agpcs_torch_log_level}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Torch REQUIRED_VARS TORCH_LIBRARIES TORCH_INCLUDE_DIRS)

if(Torch_FOUND AND NOT TARGET Torch::Torch)
  add_library(Torch::Torch INTERFACE IMPORTED)
  set_target_properties(Torch::Torch PROPERTIES
    INTERFACE_LINK_LIBRARIES "${TORCH_LIBRARIES}" INTERFACE_INCLUDE_DIRECTORIES "${agpcs_torch_include}")
  # LibTorch 2 has headers of an fmt of its own, without the library, before the system's.
  foreach(folder IN LISTS TORCH_INCLUDE_DIRS)
    if(EXISTS "${folder}/fmt/format.h")
      set_target_properties(Torch::Torch PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
    endif()
  endforeach()

  set(TORCH_HAS_GLOO FALSE)
  cmake_path(GET TORCH_LIBRARY PARENT_PATH agpcs_torch_libraries)
  if(CMAKE_NM AND EXISTS "${agpcs_torch_libraries}/libtorch_cpu.so")
    execute_process(COMMAND "${CMAKE_NM}" -D --defined-only "${agpcs_torch_libraries}/libtorch_cpu.so"
      OUTPUT_VARIABLE agpcs_torch_symbols ERROR_QUIET)
    if(agpcs_torch_symbols MATCHES " _ZN4gloo")
      set(TORCH_HAS_GLOO TRUE)
    endif()
    unset(agpcs_torch_symbols)
  endif()
endif()
