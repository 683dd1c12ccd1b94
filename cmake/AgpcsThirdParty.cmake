# SPDX-License-Identifier: Apache-2.0
# Finds the third parties, and only those that the chosen configuration uses. Nothing is ever downloaded.
# Each has an imported target, which its owner folder names in PRIVATE_DEPS:
#
#   fmt::fmt, Threads::Threads                            any folder
#   xxhash.h (AGPCS_XXHASH_INCLUDE)                       runtime/support, private: its library needs nothing to be linked
#   OpenSSL::SSL                                          runtime/bootstrap
#   ONNX::ONNX, protobuf::libprotobuf, yaml-cpp           frontend
#   Eigen3::Eigen                                         cost_model
#   METIS::METIS                                          planner
#   Gloo::Gloo, Torch::Torch, NCCL::NCCL, CUDA::cudart    runtime, each in a library of its own
#   Torch::Torch                                          planner too, in a library of its own
#   CLI11::CLI11                                          tools
#   pugixml::pugixml                                      tools/cluster
#   Tcmalloc::Tcmalloc                                    tools/compile, plan, run, profile: programs, not their libraries
#   nlohmann_json::nlohmann_json                          tools/common: the others include its tools/common/json.h
include_guard(GLOBAL)

define_property(GLOBAL PROPERTY AGPCS_FOUND BRIEF_DOCS "Optional third parties and whether they are used")

# Resolves option AGPCS_WITH_<feature> (ON, OFF, AUTO) to AGPCS_HAS_<feature>, looking for the packages only where they
# are wanted, and ending the configuration where they are demanded and absent.
macro(agpcs_find_feature feature)
  set(AGPCS_HAS_${feature} FALSE)
  set(agpcs_feature_note "off")
  if(NOT "${AGPCS_WITH_${feature}}" MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "AGPCS_WITH_${feature} is '${AGPCS_WITH_${feature}}', not ON, OFF or AUTO")
  endif()
  if(AGPCS_WITH_${feature})
    set(AGPCS_HAS_${feature} TRUE)
    set(agpcs_feature_note "found")
    foreach(agpcs_package ${ARGN})
      find_package(${agpcs_package} QUIET)
      if(NOT ${agpcs_package}_FOUND)
        set(AGPCS_HAS_${feature} FALSE)
        set(agpcs_feature_note "${agpcs_package} not found")
        break()
      endif()
    endforeach()
    if(NOT AGPCS_HAS_${feature} AND NOT AGPCS_WITH_${feature} STREQUAL "AUTO")
      message(FATAL_ERROR "AGPCS_WITH_${feature} is ON, but ${agpcs_feature_note}")
    endif()
  endif()
  set_property(GLOBAL APPEND PROPERTY AGPCS_FOUND "${feature}: ${agpcs_feature_note}")
endmacro()

find_package(fmt REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenSSL 1.1.1 REQUIRED COMPONENTS SSL)
find_path(AGPCS_XXHASH_INCLUDE xxhash.h)
mark_as_advanced(AGPCS_XXHASH_INCLUDE)
if(NOT AGPCS_XXHASH_INCLUDE)
  message(FATAL_ERROR "xxhash.h is not found: install libxxhash-dev (tools/install_deps.sh), or set AGPCS_XXHASH_INCLUDE")
endif()

if(AGPCS_BUILD_COMPILER)
  find_package(ONNX MODULE REQUIRED)
  find_package(yaml-cpp REQUIRED)
  find_package(Eigen3 REQUIRED NO_MODULE)
  find_package(METIS REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(pugixml REQUIRED)
  find_package(nlohmann_json 3.10 REQUIRED)
endif()

agpcs_find_feature(TORCH Torch)
# Two Glooes in one process have the same symbols. Messages go over TCP without it.
if(AGPCS_HAS_TORCH AND TORCH_HAS_GLOO AND AGPCS_WITH_GLOO)
  if(NOT AGPCS_WITH_GLOO STREQUAL "AUTO")
    message(FATAL_ERROR "AGPCS_WITH_GLOO is ON, but ${TORCH_LIBRARY} exports a Gloo of its own: configure with "
      "-DAGPCS_WITH_GLOO=OFF")
  endif()
  set(AGPCS_HAS_GLOO FALSE)
  set_property(GLOBAL APPEND PROPERTY AGPCS_FOUND "GLOO: off, LibTorch has its own")
else()
  agpcs_find_feature(GLOO Gloo)
endif()
agpcs_find_feature(CUDA CUDAToolkit NCCL)
# A sanitizer brings an allocator of its own.
if(AGPCS_BUILD_COMPILER AND NOT AGPCS_SANITIZE AND NOT AGPCS_FUZZ)
  agpcs_find_feature(TCMALLOC Tcmalloc)
endif()

if(AGPCS_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "GoogleTest is not found: run tools/install_deps.sh --tests, or configure with -DAGPCS_BUILD_TESTS=OFF")
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  include(GoogleTest)
  # ONNX's own tests of its operators; tests that run them are skipped where the folder is absent.
  execute_process(COMMAND bash "${PROJECT_SOURCE_DIR}/tools/onnx/onnx.sh" node-tests
    OUTPUT_VARIABLE AGPCS_ONNX_NODE_TESTS OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()

# The Python that has torch, for tests that compare with it: the first one, or the system's. Empty where neither has.
if(AGPCS_BUILD_TESTS AND AGPCS_HAS_TORCH AND NOT DEFINED AGPCS_TORCH_PYTHON)
  set(AGPCS_TORCH_PYTHON "" CACHE FILEPATH "A Python interpreter that imports torch")
  foreach(python "${Python3_EXECUTABLE}" /usr/bin/python3)
    execute_process(COMMAND "${python}" -c "import torch" RESULT_VARIABLE python_rc OUTPUT_QUIET ERROR_QUIET)
    if(python_rc EQUAL 0)
      set_property(CACHE AGPCS_TORCH_PYTHON PROPERTY VALUE "${python}")
      break()
    endif()
  endforeach()
endif()

# The Python that tests the package: the one with torch, if there is one. A sanitized library does not load in a Python
# without the sanitizer.
set(AGPCS_HAS_PYTHON FALSE)
if(AGPCS_BUILD_PYTHON AND AGPCS_BUILD_COMPILER AND NOT AGPCS_SANITIZE)
  set(AGPCS_HAS_PYTHON TRUE)
  if(AGPCS_BUILD_TESTS)
    if(NOT Python_EXECUTABLE AND AGPCS_TORCH_PYTHON)
      set(Python_EXECUTABLE "${AGPCS_TORCH_PYTHON}")
    endif()
    find_package(Python REQUIRED COMPONENTS Interpreter)
  endif()
endif()
set(agpcs_python_note "off")
if(AGPCS_HAS_PYTHON)
  set(agpcs_python_note "on")
endif()
set_property(GLOBAL APPEND PROPERTY AGPCS_FOUND "PYTHON: ${agpcs_python_note}")

find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache asks for with precompiled headers: none of our sources reads __TIME__. With the base
  # folder, paths in this tree are relative, so that a second clone or worktree finds the objects of the
  # first (those without debug information: that names the folder).
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${CCACHE_PROGRAM}")
endif()

function(agpcs_print_summary)
  get_property(libraries GLOBAL PROPERTY AGPCS_LIBRARIES)
  get_property(found GLOBAL PROPERTY AGPCS_FOUND)
  list(JOIN libraries " " libraries)
  list(JOIN found ", " found)
  message(STATUS "AGPCS ${PROJECT_VERSION}: libraries: ${libraries}")
  message(STATUS "AGPCS ${PROJECT_VERSION}: optional: ${found}")
endfunction()
