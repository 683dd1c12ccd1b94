# SPDX-License-Identifier: Apache-2.0
# Looks for tests of no target in small folders, and checks what CMake says.
cmake_minimum_required(VERSION 3.25)

# Writes `lists`, pairs of a folder and what its CMakeLists.txt says, and the empty tests that follow TESTS; sets `rc` and
# `output` to what the check says of them.
function(check)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "LISTS;TESTS")
  file(REMOVE_RECURSE "${WORK_DIR}")
  file(WRITE "${WORK_DIR}/check.cmake" "
    cmake_minimum_required(VERSION 3.25)
    include(\"${SOURCE_DIR}/cmake/AgpcsOrphanTests.cmake\")
    agpcs_refuse_orphan_tests(\"${WORK_DIR}/tests\")
  ")
  while(arg_LISTS)
    list(POP_FRONT arg_LISTS folder text)
    file(WRITE "${WORK_DIR}/tests/${folder}/CMakeLists.txt" "${text}\n")
  endwhile()
  foreach(test IN LISTS arg_TESTS)
    file(WRITE "${WORK_DIR}/tests/${test}" "")
  endforeach()
  execute_process(COMMAND "${CMAKE_COMMAND}" -P "${WORK_DIR}/check.cmake"
    RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE err)
  string(REGEX REPLACE "[ \n]+" " " output "${out} ${err}")  # CMake wraps its messages
  set(rc "${rc}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_accepted)
  check(${ARGN})
  if(NOT rc EQUAL 0)
    message(SEND_ERROR "should be accepted: ${ARGN}\n${output}")
  endif()
endfunction()

function(expect_refused why)
  check(${ARGN})
  string(FIND "${output}" "in no target, so that nothing runs them: ${why} " at)
  if(rc EQUAL 0 OR at EQUAL -1)
    message(SEND_ERROR "should be refused for ${why}: ${ARGN}\n${output}")
  endif()
endfunction()

expect_accepted(LISTS . "agpcs_test(a SOURCES a_test.cc inner/b_test.cc DEPS x)" TESTS a_test.cc inner/b_test.cc inner/help.cc)
expect_accepted(LISTS inner "if(NO)\n agpcs_test(a SOURCES\n a_test.cc\n ../other/b_test.cc)\nendif()"
  TESTS inner/a_test.cc other/b_test.cc)
expect_refused("b_test.cc" LISTS . "agpcs_test(a SOURCES a_test.cc)" TESTS a_test.cc b_test.cc)
expect_refused("inner/a_test.cc" LISTS . "agpcs_test(a SOURCES a_test.cc)" TESTS a_test.cc inner/a_test.cc)
expect_refused("a_test.cc, b_test.cc" LISTS . "agpcs_test(x SOURCES aa_test.cc)  # a_test.cc b_test.cc"
  TESTS a_test.cc aa_test.cc b_test.cc)
expect_refused("other/a_test.cc" LISTS . "agpcs_test(a SOURCES inner/a_test.cc)" inner "" TESTS inner/a_test.cc other/a_test.cc)
