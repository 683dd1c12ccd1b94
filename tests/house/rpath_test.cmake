# SPDX-License-Identifier: Apache-2.0
# Links a command, a plugin and a test of a tiny project with a library in a folder of its own, as with CUDA's, and reads
# where they look for it: in the build tree and where they are installed.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
endfunction()

# Configures and builds a project that declares the three, and then `more`.
function(build_with_libraries_in elsewhere more)
  file(REMOVE_RECURSE "${WORK_DIR}/build" "${WORK_DIR}/prefix")
  file(WRITE "${WORK_DIR}/project/CMakeLists.txt" "
    cmake_minimum_required(VERSION 3.25)
    project(rpaths LANGUAGES CXX)
    find_package(fmt REQUIRED)
    include(\"${SOURCE_DIR}/cmake/AgpcsLibrary.cmake\")
    agpcs_search_in_tree(\"${elsewhere}/libplanted.so\")
    agpcs_tool(command ROOM tools/run SOURCES main.cc PRIVATE_DEPS \"${elsewhere}/libplanted.so\")
    add_library(plugin MODULE main.cc)
    agpcs_target_defaults(plugin PRIVATE_DEPS \"${elsewhere}/libplanted.so\")
    install(TARGETS plugin LIBRARY DESTINATION lib/agpcs)
    add_executable(test main.cc)
    agpcs_target_defaults(test PRIVATE_DEPS \"${elsewhere}/libplanted.so\")
    ${more}
  ")
  run("${CMAKE_COMMAND}" -G "${GENERATOR}" -D "CMAKE_CXX_COMPILER=${CXX_COMPILER}"
    -S "${WORK_DIR}/project" -B "${WORK_DIR}/build")
  run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
endfunction()

function(build more)
  build_with_libraries_in("${elsewhere}" "${more}")
endfunction()

# Checks the binaries below `folder`; sets `rc` and `output`.
function(check folder)
  execute_process(COMMAND "${PYTHON}" "${SOURCE_DIR}/tests/house/check_binaries.py" --readelf "${READELF}"
      --skip "${folder}/CMakeFiles" ${ARGN} "${folder}"
    RESULT_VARIABLE rc OUTPUT_VARIABLE output)
  set(rc "${rc}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_output expected_rc expected)
  if(NOT rc EQUAL expected_rc OR NOT output STREQUAL expected)
    message(SEND_ERROR "should end with ${expected_rc} and '${expected}', not with ${rc} and '${output}'")
  endif()
endfunction()

# Sets `path` to the RUNPATH of `binary`.
function(read_runpath binary)
  execute_process(COMMAND "${READELF}" --wide -d "${binary}" OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "\\(RUNPATH\\)[^[]*\\[([^\n]*)\\]" ignored "${dynamic}")
  set(path "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
set(elsewhere "${WORK_DIR}/elsewhere")
file(WRITE "${WORK_DIR}/project/main.cc" "int planted();\nint main() { return planted(); }\n")
file(WRITE "${elsewhere}/planted.cc" "int planted() { return 0; }\n")
run("${CXX_COMPILER}" -shared -fPIC -o "${elsewhere}/libplanted.so" "${elsewhere}/planted.cc")

build("")
check("${WORK_DIR}/build")
expect_output(0 "check_binaries: 3 binaries, 3 with a search path of their own, 0 errors\n")
run("${CMAKE_COMMAND}" --install "${WORK_DIR}/build" --prefix "${WORK_DIR}/prefix")
check("${WORK_DIR}/prefix" --not-in "${WORK_DIR}/build" --not-in "${WORK_DIR}/project")
expect_output(0 "check_binaries: 2 binaries, 2 with a search path of their own, 0 errors\n")
foreach(binary build/bin/command build/libplugin.so build/test prefix/bin/command prefix/lib/agpcs/libplugin.so)
  read_runpath("${WORK_DIR}/${binary}")
  if(NOT path STREQUAL elsewhere)
    message(SEND_ERROR "${binary} has RUNPATH '${path}', not '${elsewhere}'")
  endif()
endforeach()
run("${WORK_DIR}/prefix/bin/command")

# In the project itself, as of a LibTorch in .venv.
set(inside "${WORK_DIR}/project/.venv/lib")
file(COPY "${elsewhere}/libplanted.so" DESTINATION "${inside}")
build_with_libraries_in("${inside}" "")
foreach(binary bin/command libplugin.so test)
  read_runpath("${WORK_DIR}/build/${binary}")
  if(NOT path STREQUAL inside)
    message(SEND_ERROR "${binary} has RUNPATH '${path}', not '${inside}'")
  endif()
endforeach()
run("${WORK_DIR}/build/bin/command")

# As it was: CMake makes room for a longer path, which the installation is to write.
build("set_target_properties(command PROPERTIES BUILD_WITH_INSTALL_RPATH OFF INSTALL_RPATH /opt)")
check("${WORK_DIR}/build")
string(CONCAT padded "${WORK_DIR}/build/bin/command: error: RUNPATH '${elsewhere}:::::' has an empty element, which is the "
  "current folder\ncheck_binaries: 3 binaries, 3 with a search path of their own, 1 errors\n")
expect_output(1 "${padded}")
# A path into the build tree stays there when it is installed.
build("set_target_properties(command PROPERTIES INSTALL_RPATH \"${WORK_DIR}/build/lib\")")
run("${CMAKE_COMMAND}" --install "${WORK_DIR}/build" --prefix "${WORK_DIR}/prefix")
check("${WORK_DIR}/prefix" --not-in "${WORK_DIR}/build")
set(found "${WORK_DIR}/build/lib:${elsewhere}")
string(CONCAT stays "${WORK_DIR}/prefix/bin/command: error: RUNPATH '${found}' has the element '${WORK_DIR}/build/lib', which "
  "is in ${WORK_DIR}/build, not where it is installed\n"
  "check_binaries: 2 binaries, 2 with a search path of their own, 1 errors\n")
expect_output(1 "${stays}")
