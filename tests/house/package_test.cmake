# SPDX-License-Identifier: Apache-2.0
# Installs the build into a folder of its own, builds samples/ against that package, and runs the sample.
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
run("${WORK_DIR}/build/show_plan" "${SOURCE_DIR}/samples/plans/two_ranks.plan")
