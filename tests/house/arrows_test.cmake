# SPDX-License-Identifier: Apache-2.0
# Configures tiny projects that declare libraries with right and wrong arrows, and checks what CMake says.
cmake_minimum_required(VERSION 3.25)

# Configures a project that consists of `declarations`; sets `rc` and `output`.
function(configure declarations)
  file(REMOVE_RECURSE "${WORK_DIR}")
  file(WRITE "${WORK_DIR}/empty.cc" "")
  file(WRITE "${WORK_DIR}/CMakeLists.txt" "
    cmake_minimum_required(VERSION 3.25)
    project(arrows LANGUAGES CXX)
    find_package(fmt REQUIRED)
    include(\"${SOURCE_DIR}/cmake/AgpcsLibrary.cmake\")
    ${declarations}
  ")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -G "${GENERATOR}" -D "CMAKE_CXX_COMPILER=${CXX_COMPILER}"
      -S "${WORK_DIR}" -B "${WORK_DIR}/build"
    RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE err)
  string(REGEX REPLACE "[ \n]+" " " output "${out} ${err}")  # CMake wraps its messages
  set(rc "${rc}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_accepted declarations)
  configure("${declarations}")
  if(NOT rc EQUAL 0)
    message(SEND_ERROR "should configure: ${declarations}\n${output}")
  endif()
endfunction()

function(expect_refused declarations why)
  configure("${declarations}")
  string(FIND "${output}" "${why}" at)
  if(rc EQUAL 0 OR at EQUAL -1)
    message(SEND_ERROR "should be refused with '${why}': ${declarations}\n${output}")
  endif()
endfunction()

set(ir "agpcs_library(ir/base SOURCES empty.cc)
  agpcs_library(ir/plan SOURCES empty.cc DEPS ir/base)\n")
expect_accepted("${ir} agpcs_library(ir/graph SOURCES empty.cc DEPS ir/base ir/plan)
  agpcs_library(runtime/support SOURCES empty.cc DEPS ir/base ir/plan)
  agpcs_library(runtime/replay SOURCES empty.cc DEPS runtime/support)
  agpcs_library(other ROOM runtime/replay SOURCES empty.cc DEPS runtime/replay)
  agpcs_tool(tool ROOM tools/run SOURCES empty.cc DEPS ir/graph other)")
expect_refused("agpcs_library(ir/base SOURCES empty.cc DEPS ir/plan)"
  "ir/base may not depend on ir/plan: ir/base may use ()")
expect_refused("${ir} agpcs_library(ir/graph SOURCES empty.cc DEPS ir/plan codegen)"
  "ir/graph may not depend on codegen: ir/graph may use (ir/base ir/plan)")
expect_refused("${ir} agpcs_library(runtime/support SOURCES empty.cc DEPS ir/base)
  agpcs_library(other ROOM runtime/support SOURCES empty.cc DEPS runtime/support)
  agpcs_library(codegen SOURCES empty.cc DEPS ir/base other)"
  "codegen may not depend on other: codegen may use (")
expect_refused("${ir} agpcs_library(helpers SOURCES empty.cc DEPS ir/base)"
  "'helpers' is not a room of the arrow table")
expect_refused("${ir} agpcs_library(ir/graph SOURCES empty.cc DEPS ri/base)" "there is no library 'ri/base'")
expect_refused("${ir} agpcs_library(ir/cluster SOURCES empty.cc DEPS ir/graph)"
  "ir/cluster depends on ir/graph, which is not built in this configuration")
expect_refused("agpcs_library(ir/base INSTALLED SOURCES empty.cc)" "agpcs_library(ir/base): unknown argument: INSTALLED")
expect_refused("agpcs_room(ir/other tests/x)" "the row of ir/other in the arrow table names tests/x, which has no row above it")
expect_refused("agpcs_tool(tool SOURCES empty.cc)" "agpcs_tool(tool): ROOM is missing")
