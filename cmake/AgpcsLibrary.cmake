# SPDX-License-Identifier: Apache-2.0
# A folder is a library. This file holds the one table of arrows between folders and the functions that declare
# libraries, commands and tests. A dependency outside the table ends the configuration.
include_guard(GLOBAL)

set(AGPCS_FOLDERS ir frontend cost_model codegen planner runtime tools)
set(AGPCS_ARROWS_ir)
set(AGPCS_ARROWS_frontend ir)
set(AGPCS_ARROWS_cost_model ir)
set(AGPCS_ARROWS_planner ir cost_model codegen)
set(AGPCS_ARROWS_codegen ir)
set(AGPCS_ARROWS_runtime ir)
set(AGPCS_ARROWS_tools ir frontend cost_model planner codegen runtime)

define_property(TARGET PROPERTY AGPCS_FOLDER BRIEF_DOCS "The folder that a library of AGPCS belongs to")
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

# Sets `out` to the folder of library `dep`, which may not have been declared yet.
function(agpcs_folder_of dep out)
  if(TARGET agpcs_${dep})
    get_target_property(folder agpcs_${dep} AGPCS_FOLDER)
  elseif(dep IN_LIST AGPCS_FOLDERS)
    set(folder ${dep})
  else()
    message(FATAL_ERROR "there is no library '${dep}' (or it is declared later); folders: ${AGPCS_FOLDERS}")
  endif()
  set(${out} ${folder} PARENT_SCOPE)
endfunction()

# Ends the configuration if `name`, a library of `folder`, may not depend on one of the libraries that follow.
function(agpcs_check_arrows name folder)
  if(NOT folder IN_LIST AGPCS_FOLDERS)
    message(FATAL_ERROR "${name}: '${folder}' is not a folder of the arrow table: ${AGPCS_FOLDERS}")
  endif()
  foreach(dep IN LISTS ARGN)
    agpcs_folder_of(${dep} dep_folder)
    if(NOT dep_folder STREQUAL folder AND NOT dep_folder IN_LIST AGPCS_ARROWS_${folder})
      list(JOIN AGPCS_ARROWS_${folder} " " allowed)
      message(FATAL_ERROR "${name} may not depend on ${dep}: ${folder} may use (${allowed}), "
        "see the arrow table in cmake/AgpcsLibrary.cmake")
    endif()
    if(NOT TARGET agpcs_${dep})
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
    $<BUILD_INTERFACE:agpcs_warnings> $<BUILD_INTERFACE:agpcs_sanitizers> fmt::fmt ${arg_PRIVATE_DEPS})
  foreach(dep IN LISTS arg_DEPS)
    target_link_libraries(${target} ${arg_VISIBILITY} agpcs::${dep})
  endforeach()
  if("Torch::Torch" IN_LIST arg_PRIVATE_DEPS)
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE agpcs_heavy)
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

# agpcs_library(<name> [FOLDER <folder>] [INSTALL] SOURCES <file>... [DEPS <library>...] [PRIVATE_DEPS <target>...])
#
# Declares target agpcs_<name> and its alias agpcs::<name>. FOLDER is for a further library in a folder: by default it is
# the name. DEPS are libraries of AGPCS, along the arrows; third parties are PRIVATE_DEPS, by their imported targets.
# INSTALL makes the library part of the installed package, with the headers in <folder>/include.
function(agpcs_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL" "FOLDER" "SOURCES;DEPS;PRIVATE_DEPS")
  agpcs_reject_unknown("agpcs_library(${name})" ${arg_UNPARSED_ARGUMENTS})
  if(NOT arg_FOLDER)
    set(arg_FOLDER ${name})
  endif()
  agpcs_check_arrows(${name} ${arg_FOLDER} ${arg_DEPS})

  add_library(agpcs_${name} STATIC ${arg_SOURCES})
  add_library(agpcs::${name} ALIAS agpcs_${name})
  set_target_properties(agpcs_${name} PROPERTIES AGPCS_FOLDER ${arg_FOLDER} EXPORT_NAME ${name})
  agpcs_target_defaults(agpcs_${name} VISIBILITY PUBLIC DEPS ${arg_DEPS} PRIVATE_DEPS ${arg_PRIVATE_DEPS})
  target_compile_features(agpcs_${name} INTERFACE cxx_std_17)
  target_include_directories(agpcs_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  set(installed_headers "${PROJECT_SOURCE_DIR}/${arg_FOLDER}/include")
  if(EXISTS "${installed_headers}")
    target_include_directories(agpcs_${name} PUBLIC $<BUILD_INTERFACE:${installed_headers}>)
  endif()
  set_property(GLOBAL APPEND PROPERTY AGPCS_LIBRARIES ${name})
  if(arg_INSTALL)
    agpcs_install_library(${name} ${arg_FOLDER})
  endif()
endfunction()

# agpcs_tool(<command> SOURCES <file>... [DEPS <library>...] [PRIVATE_DEPS <target>...])
#
# Declares a command, which is built as bin/<command> and installed.
function(agpcs_tool name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS;PRIVATE_DEPS")
  agpcs_reject_unknown("agpcs_tool(${name})" ${arg_UNPARSED_ARGUMENTS})
  agpcs_check_arrows(${name} tools ${arg_DEPS})
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  agpcs_target_defaults(${name} VISIBILITY PRIVATE DEPS ${arg_DEPS} PRIVATE_DEPS ${arg_PRIVATE_DEPS})
  install(TARGETS ${name} RUNTIME COMPONENT commands)
endfunction()

# agpcs_test(<name> SOURCES <file>... [DEPS <library>...] [PRIVATE_DEPS <target>...] [LABELS <label>...]
#            [TIMEOUT <seconds>] [PROCESSORS <n>])
#
# Declares a GoogleTest binary, tests/<name>, whose tests ctest runs one by one, with the source folder as working
# directory. A test may use every library; one in `tools` or `training` finds the commands in AGPCS_BIN_DIR and a Python
# with torch, or "", in AGPCS_TORCH_PYTHON (not the others: their objects are the same in every preset, and ccache knows
# them again). Its label is its folder and the LABELS, joined: `ir-slow`.
function(agpcs_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;PROCESSORS" "SOURCES;DEPS;PRIVATE_DEPS;LABELS")
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

  add_executable(${name} ${arg_SOURCES})
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
  if(folder MATCHES "^(tools|training)$")
    target_compile_definitions(${name} PRIVATE
      AGPCS_BIN_DIR="${PROJECT_BINARY_DIR}/bin" AGPCS_TORCH_PYTHON="${AGPCS_TORCH_PYTHON}")
  endif()
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    PROPERTIES LABELS "${label}" TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS})
endfunction()

# Compiles the headers that most tests include, tests/precompiled.h, once for all of them. No source counts on it: with
# CMAKE_DISABLE_PRECOMPILE_HEADERS all compile alike.
function(agpcs_precompile_test_headers name)
  set(header "${PROJECT_SOURCE_DIR}/tests/precompiled.h")
  if(NOT TARGET agpcs_test_headers)  # an executable: GCC takes a precompiled header only with its own flags (-fPIE)
    add_executable(agpcs_test_headers EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/precompiled.cc")
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
