# SPDX-License-Identifier: Apache-2.0
# Installs the build into a folder of its own, builds samples/ against that package, runs the samples, and reads where all
# these binaries look for shared libraries.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
run("${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${SOURCE_DIR}/samples" -B "${WORK_DIR}/build"
  -D "CMAKE_PREFIX_PATH=${WORK_DIR}/prefix" -D "CMAKE_CXX_COMPILER=${CXX_COMPILER}"
  -D "CMAKE_BUILD_TYPE=${BUILD_TYPE}" -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
run("${PYTHON}" "${SOURCE_DIR}/tests/house/check_binaries.py" --readelf "${READELF}"
  --not-in "${BUILD_DIR}" "${WORK_DIR}/prefix" "${WORK_DIR}/build")
if(EXISTS "${WORK_DIR}/prefix/bin")  # a build of the runtime alone has no commands
  run("${PYTHON}" "${SOURCE_DIR}/tests/house/check_binaries.py" --readelf "${READELF}"
    ${HARDENED} "${WORK_DIR}/prefix/bin")
endif()

# Runs a sample on its plan and checks what it prints.
function(expect_output sample expected)
  execute_process(COMMAND "${WORK_DIR}/build/${sample}" "${SOURCE_DIR}/samples/plans/fit_line.plan"
    OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "${expected}")
    message(SEND_ERROR "${sample} printed '${output}', which does not match '${expected}'")
  endif()
endfunction()

expect_output(show_plan "^line: 2 ranks, micro-batches: 1\nrank 0 on local/0: s0, 12 samples of each micro-batch\n")
expect_output(fit_line "^y = (2\\.99|3)[0-9.]* x \\+ -(0\\.99|1)")
