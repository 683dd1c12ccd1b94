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

set(ir "agpcs_library(ir SOURCES empty.cc)\n")
expect_accepted("${ir} agpcs_library(cost_model SOURCES empty.cc DEPS ir)
  agpcs_library(planner SOURCES empty.cc DEPS ir cost_model)
  agpcs_library(runtime SOURCES empty.cc DEPS ir)
  agpcs_library(runtime_other FOLDER runtime SOURCES empty.cc DEPS runtime)
  agpcs_tool(tool SOURCES empty.cc DEPS planner runtime_other)")
expect_refused("agpcs_library(ir SOURCES empty.cc DEPS planner)"
  "ir may not depend on planner: ir may use ()")
expect_refused("${ir} agpcs_library(frontend SOURCES empty.cc DEPS ir runtime)"
  "frontend may not depend on runtime: frontend may use (ir)")
expect_refused("${ir} agpcs_library(runtime SOURCES empty.cc DEPS ir)
  agpcs_library(runtime_other FOLDER runtime SOURCES empty.cc DEPS runtime)
  agpcs_library(codegen SOURCES empty.cc DEPS ir runtime_other)"
  "codegen may not depend on runtime_other: codegen may use (ir)")
expect_refused("${ir} agpcs_library(helpers SOURCES empty.cc DEPS ir)"
  "'helpers' is not a folder of the arrow table")
expect_refused("${ir} agpcs_library(runtime SOURCES empty.cc DEPS ri)" "there is no library 'ri'")
expect_refused("${ir} agpcs_library(planner SOURCES empty.cc DEPS ir cost_model)"
  "planner depends on cost_model, which is not built in this configuration")
expect_refused("agpcs_library(ir INSTALLED SOURCES empty.cc)" "agpcs_library(ir): unknown argument: INSTALLED")
