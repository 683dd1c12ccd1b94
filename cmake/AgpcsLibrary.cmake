# SPDX-License-Identifier: Apache-2.0
# A room, which is a folder like planner/seed, is a library. This file holds the one table of arrows between rooms and the
# functions that declare libraries, commands and tests. A dependency outside the table ends the configuration.
include_guard(GLOBAL)

# agpcs_room(<room> [<room that it may use>...])
#
# A row of the table. It comes after the rows that it names, so that no arrow points up; "ir/*" is every room of ir so far.
macro(agpcs_room room)
  agpcs_expand_rooms(AGPCS_ARROWS_${room} ${room} ${ARGN})
  list(APPEND AGPCS_ROOMS ${room})
endmacro()

# Sets `out` to the rooms that `patterns`, of the row of `room`, stand for.
function(agpcs_expand_rooms out room)
  set(rooms)
  foreach(pattern IN LISTS ARGN)
    string(REPLACE "*" ".*" regex "${pattern}")
    set(matching ${AGPCS_ROOMS})
    list(FILTER matching INCLUDE REGEX "^${regex}$")
    if(NOT matching)
      message(FATAL_ERROR "the row of ${room} in the arrow table names ${pattern}, which has no row above it")
    endif()
    list(APPEND rooms ${matching})
  endforeach()
  set(${out} ${rooms} PARENT_SCOPE)
endfunction()

agpcs_room(ir/base)
agpcs_room(ir/plan ir/base)
agpcs_room(ir/graph ir/base ir/plan)
agpcs_room(ir/cluster ir/base ir/plan ir/graph)
agpcs_room(ir/team ir/base ir/plan ir/graph)
agpcs_room(ir/strategy ir/*)

agpcs_room(frontend/onnx ir/base ir/plan ir/graph)
agpcs_room(frontend/cluster ir/base ir/plan ir/graph ir/cluster)
agpcs_room(frontend ir/base frontend/onnx)

agpcs_room(codegen ir/*)

agpcs_room(cost_model/network ir/base ir/plan ir/cluster)
agpcs_room(cost_model/flows ir/base ir/plan ir/cluster cost_model/network)
agpcs_room(cost_model/kernel ir/base ir/plan ir/graph ir/cluster)
agpcs_room(cost_model/step ir/* cost_model/network cost_model/flows cost_model/kernel)
agpcs_room(cost_model/fit ir/base ir/graph ir/cluster cost_model/network cost_model/kernel cost_model/step)
agpcs_room(cost_model/explain ir/* cost_model/network cost_model/step)

agpcs_room(planner/problem ir/* codegen cost_model/step)
agpcs_room(planner/team ir/* codegen cost_model/network cost_model/step planner/problem)
agpcs_room(planner/bound ir/* codegen cost_model/step planner/problem)
agpcs_room(planner/evaluate ir/* codegen cost_model/network cost_model/flows cost_model/step cost_model/fit planner/problem)
agpcs_room(planner/seed ir/base ir/cluster ir/strategy cost_model/network planner/problem planner/team planner/evaluate)
agpcs_room(planner/policy ir/base)
agpcs_room(planner/refine ir/base ir/cluster ir/strategy cost_model/network planner/problem planner/evaluate planner/seed planner/policy)
agpcs_room(planner/flows ir/base ir/cluster cost_model/flows planner/policy)
agpcs_room(planner/learn ir/base ir/plan ir/graph ir/cluster planner/policy planner/refine planner/flows)
agpcs_room(planner ir/* codegen cost_model/* planner/*)

agpcs_room(runtime ir/base ir/plan)  # the installed headers
agpcs_room(runtime/support ir/base ir/plan runtime)
agpcs_room(runtime/bootstrap ir/base runtime)
agpcs_room(runtime/transport ir/base ir/plan runtime runtime/support runtime/bootstrap)
agpcs_room(runtime/nccl ir/base ir/plan runtime runtime/support)
agpcs_room(runtime/replay ir/base ir/plan runtime runtime/support)
agpcs_room(runtime/job ir/base ir/plan runtime runtime/support runtime/replay)
agpcs_room(runtime/reduce ir/base ir/plan runtime runtime/support runtime/replay)
agpcs_room(runtime/torch ir/base ir/plan ir/graph ir/team ir/strategy runtime runtime/support)

agpcs_room(tools/common ir/* frontend/* cost_model/* planner/refine)
agpcs_room(tools/compile ir/* frontend/* cost_model/* planner planner/* tools/common)
agpcs_room(tools/plan ir/* frontend/* codegen cost_model/* planner planner/* tools/common)
agpcs_room(tools/run ir/* frontend frontend/* cost_model/* planner planner/* runtime runtime/* tools/common)
agpcs_room(tools/profile ir/* frontend/* codegen cost_model/* planner/* runtime runtime/* tools/common tools/run)
agpcs_room(tools/cluster ir/* frontend/* codegen runtime runtime/* tools/common tools/run tools/profile)
agpcs_room(tools/allreduce ir/* frontend/* codegen cost_model/* planner/flows tools/common)
agpcs_room(tools/train_policy ir/* planner planner/* tools/common)
agpcs_room(tools/python ir/* frontend/* cost_model/* planner planner/* runtime runtime/job runtime/support tools/common tools/compile tools/plan)

# agpcs_kernels(<out> <kernels.cu> <absent.cc>)
#
# Sets `out` to the object of a file of CUDA kernels; where there is no CUDA compiler, to the file that takes its place.
# nvcc itself compiles it: a language of CMake's would bring its own runtime to every target.
function(agpcs_kernels out source absent)
  if(NOT CUDAToolkit_NVCC_EXECUTABLE)
    set(${out} "${absent}" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(name "${source}" NAME_WE)
  set(object "${CMAKE_CURRENT_BINARY_DIR}/kernels_${name}.o")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" -c -O3 -std=c++17 -arch=all-major -Xcompiler=-fPIC
            "-I${PROJECT_SOURCE_DIR}" "-I${PROJECT_SOURCE_DIR}/ir/base/include" -MMD -MF "${object}.d" -o "${object}"
            "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
    DEPENDS "${source}" DEPFILE "${object}.d"
    COMMENT "Compiling ${source}" VERBATIM)
  set(${out} "${object}" PARENT_SCOPE)
endfunction()

define_property(TARGET PROPERTY AGPCS_ROOM BRIEF_DOCS "The room that a library of AGPCS belongs to")
define_property(GLOBAL PROPERTY AGPCS_INSTALLED BRIEF_DOCS "The libraries that are installed")
define_property(GLOBAL PROPERTY AGPCS_LIBRARIES BRIEF_DOCS "All libraries that are built")

# LibTorch's headers take well over a gigabyte per translation unit: bound how many compile at once by memory.
cmake_host_system_information(RESULT agpcs_memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR agpcs_heavy_jobs "${agpcs_memory_mib} / 3072")
if(agpcs_heavy_jobs LESS 1)
  set(agpcs_heavy_jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS agpcs_heavy=${agpcs_heavy_jobs})

add_library(agpcs_warnings INTERFACE)
target_compile_options(agpcs_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wcast-align -Wunused -Wimplicit-fallthrough -Wextra-semi
  # With optimization, GCC sees overlaps in `"literal" + std::string` (bug 105651) and uninitialized values in every
  # empty std::optional (bug 80635).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-maybe-uninitialized>
  $<$<BOOL:${AGPCS_WERROR}>:-Werror>)

add_library(agpcs_sanitizers INTERFACE)
if(AGPCS_SANITIZE)
  target_compile_options(agpcs_sanitizers INTERFACE
    -fsanitize=${AGPCS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(agpcs_sanitizers INTERFACE -fsanitize=${AGPCS_SANITIZE})
endif()
if(AGPCS_FUZZ)  # a failed AGPCS_CHECK aborts, which a fuzzer records
  target_compile_definitions(agpcs_sanitizers INTERFACE AGPCS_FUZZ _GLIBCXX_ASSERTIONS)
endif()

# What makes an overflow harder to use: canaries on the stack, checked copies where code is optimized, and tables of the
# loader that are read-only once a program runs. -fcf-protection marks where indirect jumps may land. Processors heed that
# only where all that is linked has the marks, which Debian 12's start files (Scrt1.o, crti.o, crtn.o) and ONNX's library
# lack. The sanitizers bring checks of their own, which _FORTIFY_SOURCE is in the way of.
add_library(agpcs_hardening INTERFACE)
if(AGPCS_HARDENING AND NOT AGPCS_SANITIZE AND NOT AGPCS_FUZZ)
  include(CheckCXXCompilerFlag)
  foreach(flag -fstack-protector-strong -fcf-protection)
    string(MAKE_C_IDENTIFIER "agpcs_has${flag}" has)
    check_cxx_compiler_flag(${flag} ${has})
    if(${has})
      target_compile_options(agpcs_hardening INTERFACE ${flag})
    endif()
  endforeach()
  target_compile_options(agpcs_hardening INTERFACE
    $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
  target_link_options(agpcs_hardening INTERFACE LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
endif()

# Sets `out` to the target of library `name`: agpcs_planner_seed for planner/seed.
function(agpcs_target_of name out)
  string(REPLACE "/" "_" target "agpcs_${name}")
  set(${out} ${target} PARENT_SCOPE)
endfunction()

# Ends the configuration if `name`, a library of `room`, may not depend on one of the libraries that follow.
function(agpcs_check_arrows name room)
  if(NOT room IN_LIST AGPCS_ROOMS)
    message(FATAL_ERROR "${name}: '${room}' is not a room of the arrow table: ${AGPCS_ROOMS}")
  endif()
  foreach(dep IN LISTS ARGN)
    agpcs_target_of(${dep} target)
    set(dep_room ${dep})
    if(TARGET ${target})
      get_target_property(dep_room ${target} AGPCS_ROOM)
    elseif(NOT dep IN_LIST AGPCS_ROOMS)
      message(FATAL_ERROR "there is no library '${dep}' (or it is declared later); rooms: ${AGPCS_ROOMS}")
    endif()
    if(NOT dep_room STREQUAL room AND NOT dep_room IN_LIST AGPCS_ARROWS_${room})
      list(JOIN AGPCS_ARROWS_${room} " " allowed)
      message(FATAL_ERROR "${name} may not depend on ${dep}: ${room} may use (${allowed}), "
        "see the arrow table in cmake/AgpcsLibrary.cmake")
    endif()
    if(NOT TARGET ${target})
      message(FATAL_ERROR "${name} depends on ${dep}, which is not built in this configuration")
    endif()
  endforeach()
endfunction()

# What every target of ours has in common: language, warnings, sanitizers, fmt (AGPCS_CHECK uses it), dependencies, and
# where the loader looks for shared libraries: in the folders that they were linked from, installed or not. (A RUNPATH
# that is to be replaced at installation is padded with ':', and an empty element of it is the current folder.)
function(agpcs_target_defaults target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "VISIBILITY" "DEPS;PRIVATE_DEPS")
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  target_compile_features(${target} PRIVATE cxx_std_20)
  # A compiler that fuses a multiply and an add where the processor can would round costs, and so decide, otherwise there.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:agpcs_warnings> $<BUILD_INTERFACE:agpcs_sanitizers> $<BUILD_INTERFACE:agpcs_hardening>
    fmt::fmt ${arg_PRIVATE_DEPS})
  foreach(dep IN LISTS arg_DEPS)
    agpcs_target_of(${dep} dep_target)
    target_link_libraries(${target} ${arg_VISIBILITY} ${dep_target})
  endforeach()
  # Types of a source are not those of a header, which this warns of, where a unity build includes the source.
  target_compile_options(${target} PRIVATE $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wno-subobject-linkage>)
  if("Torch::Torch" IN_LIST arg_PRIVATE_DEPS)
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE agpcs_heavy)  # in a unity build, too
  endif()
endfunction()

# agpcs_search_in_tree(<file>...)
#
# Lets binaries look for shared libraries in the folders of those files that lie in this source tree, as a LibTorch in .venv
# does: CMake itself takes only folders outside of it. To be called before the targets are declared.
function(agpcs_search_in_tree)
  foreach(file IN LISTS ARGN)
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${file}" NORMALIZE in_tree)
    if(in_tree)
      cmake_path(GET file PARENT_PATH folder)
      list(APPEND CMAKE_INSTALL_RPATH "${folder}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES CMAKE_INSTALL_RPATH)
  set(CMAKE_INSTALL_RPATH "${CMAKE_INSTALL_RPATH}" PARENT_SCOPE)
endfunction()

# agpcs_library(<name> [ROOM <room>] [INSTALL] SOURCES <file>... [DEPS <library>...] [PRIVATE_DEPS <target>...])
#
# Declares target agpcs_<name>, with _ for /, and its alias agpcs::<name>. ROOM is for a further library in a room: by
# default it is the name. DEPS are libraries of AGPCS, along the arrows; third parties are PRIVATE_DEPS, by their imported
# targets. Installed headers are in <room>/include, or in the include folder above the room. INSTALL makes the library
# part of the installed package.
function(agpcs_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL" "ROOM" "SOURCES;DEPS;PRIVATE_DEPS")
  agpcs_reject_unknown("agpcs_library(${name})" ${arg_UNPARSED_ARGUMENTS})
  if(NOT arg_ROOM)
    set(arg_ROOM ${name})
  endif()
  agpcs_check_arrows(${name} ${arg_ROOM} ${arg_DEPS})

  agpcs_target_of(${name} target)
  string(REGEX REPLACE "^agpcs_" "" export_name ${target})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(agpcs::${export_name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES AGPCS_ROOM ${arg_ROOM} EXPORT_NAME ${export_name})
  agpcs_target_defaults(${target} VISIBILITY PUBLIC DEPS ${arg_DEPS} PRIVATE_DEPS ${arg_PRIVATE_DEPS})
  target_compile_features(${target} INTERFACE cxx_std_17)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  cmake_path(GET arg_ROOM PARENT_PATH folder)
  foreach(headers IN ITEMS "${PROJECT_SOURCE_DIR}/${arg_ROOM}/include" "${PROJECT_SOURCE_DIR}/${folder}/include")
    if(EXISTS "${headers}")
      target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${headers}>)
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY AGPCS_LIBRARIES ${name})
  if(arg_INSTALL)
    agpcs_install_library(${export_name})
  endif()
endfunction()

# agpcs_package(<name> LIBRARIES <library>...)
#
# Declares agpcs::<name>, which stands for those installed libraries together.
function(agpcs_package name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES")
  agpcs_reject_unknown("agpcs_package(${name})" ${arg_UNPARSED_ARGUMENTS})
  add_library(agpcs_${name} INTERFACE)
  add_library(agpcs::${name} ALIAS agpcs_${name})
  set_target_properties(agpcs_${name} PROPERTIES AGPCS_ROOM ${name} EXPORT_NAME ${name})
  foreach(library IN LISTS arg_LIBRARIES)
    agpcs_target_of(${library} target)
    target_link_libraries(agpcs_${name} INTERFACE ${target})
  endforeach()
  agpcs_install_library(${name})
endfunction()

# agpcs_tool(<command> ROOM <room> SOURCES <file>... [DEPS <library>...] [PRIVATE_DEPS <target>...])
#
# Declares a command, which is built as bin/<command> and installed.
function(agpcs_tool name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ROOM" "SOURCES;DEPS;PRIVATE_DEPS")
  agpcs_reject_unknown("agpcs_tool(${name})" ${arg_UNPARSED_ARGUMENTS})
  if(NOT arg_ROOM)
    message(FATAL_ERROR "agpcs_tool(${name}): ROOM is missing")
  endif()
  agpcs_check_arrows(${name} ${arg_ROOM} ${arg_DEPS})
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  agpcs_target_defaults(${name} VISIBILITY PRIVATE DEPS ${arg_DEPS} PRIVATE_DEPS ${arg_PRIVATE_DEPS})
  install(TARGETS ${name} RUNTIME COMPONENT commands)
endfunction()

# agpcs_test(<name> SOURCES <file>... [ALONE <file>...] [DEPS <library>...] [PRIVATE_DEPS <target>...] [LABELS <label>...]
#            [TIMEOUT <seconds>] [PROCESSORS <n>] [SHARDS <n>])
#
# Declares a GoogleTest binary, tests/<name>, whose tests ctest runs one by one, with the source folder as working
# directory. With SHARDS, n processes share the tests out among them, each a test of ctest of its own: this is for binaries
# with LibTorch, whose start takes a second. A test may use every library; one in `training` finds a Python with torch, or
# "", in AGPCS_TORCH_PYTHON (not the others: their objects are the same in every preset, and ccache knows them again). Its
# label is its folder and the LABELS, joined: `ir-slow`. ALONE are further sources, which stay out of unity builds, for
# their names clash with those of others; they do so in every target of the folder.
function(agpcs_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;PROCESSORS;SHARDS" "SOURCES;ALONE;DEPS;PRIVATE_DEPS;LABELS")
  agpcs_reject_unknown("agpcs_test(${name})" ${arg_UNPARSED_ARGUMENTS})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  list(PREPEND arg_LABELS ${folder})
  list(JOIN arg_LABELS "-" label)  # one label: ctest -L takes a part of it, too

  add_executable(${name} ${arg_SOURCES} ${arg_ALONE})
  set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  agpcs_target_defaults(${name} VISIBILITY PRIVATE DEPS ${arg_DEPS}
    PRIVATE_DEPS ${arg_PRIVATE_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)  # what it tests is optimized; it compiles sooner
  # LibTorch defines macros that fmt's headers read. Tests of the lean runtime are compiled in two presets: ccache knows
  # their objects again, as it would not with a precompiled header, of which each build folder has its own.
  if(AGPCS_BUILD_COMPILER AND NOT folder MATCHES "^(ir|runtime)$" AND NOT "Torch::Torch" IN_LIST arg_PRIVATE_DEPS)
    agpcs_precompile_test_headers(${name})
  endif()
  if(folder STREQUAL "training")
    target_compile_definitions(${name} PRIVATE AGPCS_TORCH_PYTHON="${AGPCS_TORCH_PYTHON}")
  endif()
  set(properties LABELS "${label}" TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS})
  if(NOT arg_SHARDS)
    gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" PROPERTIES ${properties})
    return()
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    math(EXPR index "${shard} - 1")
    set(test "${name}.${shard}of${arg_SHARDS}")
    add_test(NAME ${test} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${test} PROPERTIES ${properties}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# Compiles the headers that most tests include, tests/support/precompiled.h, once for all of them. No source counts on it: with
# CMAKE_DISABLE_PRECOMPILE_HEADERS all compile alike.
function(agpcs_precompile_test_headers name)
  set(header "${PROJECT_SOURCE_DIR}/tests/support/precompiled.h")
  if(NOT TARGET agpcs_test_headers)  # an executable: GCC takes a precompiled header only with its own flags (-fPIE)
    add_executable(agpcs_test_headers EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/support/precompiled.cc")
    target_include_directories(agpcs_test_headers PRIVATE "${PROJECT_SOURCE_DIR}")
    agpcs_target_defaults(agpcs_test_headers PRIVATE_DEPS GTest::gmock GTest::gtest_main)
    target_compile_options(agpcs_test_headers PRIVATE $<$<CONFIG:Release>:-O1>)
    target_precompile_headers(agpcs_test_headers PRIVATE "${header}")
  endif()
  target_precompile_headers(${name} REUSE_FROM agpcs_test_headers)
endfunction()

function(agpcs_reject_unknown where)
  if(ARGN)
    list(JOIN ARGN " " unknown)
    message(FATAL_ERROR "${where}: unknown argument: ${unknown}")
  endif()
endfunction()
