# SPDX-License-Identifier: Apache-2.0
# Finds ONNX's C++ library, which tools/onnx/onnx.sh builds, by its own package, and defines ONNX::ONNX. Looks in
# AGPCS_ONNX_ROOT alone if that is set; else in CMAKE_PREFIX_PATH and in the cache of tools/onnx/onnx.sh.
set(AGPCS_ONNX_ROOT "" CACHE PATH "Where ONNX's C++ library is installed; empty: where tools/install_deps.sh puts it")

execute_process(COMMAND bash "${CMAKE_CURRENT_LIST_DIR}/../tools/onnx/onnx.sh" prefix
  OUTPUT_VARIABLE agpcs_onnx_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
# What an earlier configuration found may be another build by now.
if(NOT "${AGPCS_ONNX_ROOT};${agpcs_onnx_prefix}" STREQUAL "${AGPCS_ONNX_SOUGHT}")
  unset(ONNX_DIR CACHE)
  set(AGPCS_ONNX_SOUGHT "${AGPCS_ONNX_ROOT};${agpcs_onnx_prefix}" CACHE INTERNAL "Where ONNX was looked for")
endif()

# PyPI's LibTorch has headers of a protobuf of its own, without the library, before the system's.
set(agpcs_ignored "${CMAKE_IGNORE_PREFIX_PATH}")
foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
  if(EXISTS "${prefix}/share/cmake/Torch" AND EXISTS "${prefix}/include/google/protobuf")
    list(APPEND CMAKE_IGNORE_PREFIX_PATH "${prefix}")
  endif()
endforeach()
find_package(Protobuf REQUIRED)
set(CMAKE_IGNORE_PREFIX_PATH "${agpcs_ignored}")
if(AGPCS_ONNX_ROOT)
  find_package(ONNX 1.23.2 CONFIG QUIET PATHS "${AGPCS_ONNX_ROOT}" NO_DEFAULT_PATH)
else()
  find_package(ONNX 1.23.2 CONFIG QUIET HINTS "${agpcs_onnx_prefix}")
endif()
if(NOT ONNX_FOUND)
  if(AGPCS_ONNX_ROOT)
    set(agpcs_onnx_prefix "${AGPCS_ONNX_ROOT}")
  endif()
  message(FATAL_ERROR "ONNX's C++ library, 1.23.2 or newer, is not found in ${agpcs_onnx_prefix}: "
    "run tools/install_deps.sh, which builds it, or set AGPCS_ONNX_ROOT to the folder where it is installed")
endif()

# LibTorch may load another release of the library, in the usual namespace.
get_target_property(agpcs_onnx_definitions ONNX::onnx INTERFACE_COMPILE_DEFINITIONS)
if(agpcs_onnx_definitions MATCHES "ONNX_NAMESPACE=onnx(;|$)")
  message(FATAL_ERROR "ONNX's C++ library in ${ONNX_DIR} is in namespace onnx, where LibTorch may have another release "
    "of it: build it with -DONNX_NAMESPACE=agpcs_onnx, as tools/onnx/onnx.sh does")
endif()
if(NOT TARGET ONNX::ONNX)
  add_library(ONNX::ONNX INTERFACE IMPORTED)
  set_target_properties(ONNX::ONNX PROPERTIES INTERFACE_LINK_LIBRARIES ONNX::onnx)
endif()
