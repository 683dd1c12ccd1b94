# SPDX-License-Identifier: Apache-2.0
# Makes the Debian packages, unpacks them side by side, reads where their binaries look for shared libraries, and plans with
# the command and the Python package that are in them.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
get_filename_component(cmake_bin "${CMAKE_COMMAND}" DIRECTORY)
run("${cmake_bin}/cpack" --config "${BUILD_DIR}/CPackConfig.cmake" -B "${WORK_DIR}")
foreach(package agpcs libagpcs-dev python3-agpcs)
  file(GLOB file "${WORK_DIR}/${package}_*.deb")
  list(LENGTH file count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "${count} packages ${package}, wanted 1")
  endif()
  run(dpkg-deb --extract "${file}" "${WORK_DIR}/root")
  execute_process(COMMAND dpkg-deb --field "${file}" Depends OUTPUT_VARIABLE depends COMMAND_ERROR_IS_FATAL ANY)
  if(NOT depends MATCHES "libfmt")
    message(SEND_ERROR "${package} depends on '${depends}', not on libfmt")
  endif()
  # LibTorch is content with the reference BLAS. Only what computes with it has agpcs-run.
  if(package STREQUAL agpcs AND EXISTS "${WORK_DIR}/root/usr/bin/agpcs-run" AND NOT depends MATCHES "libopenblas0-openmp")
    message(SEND_ERROR "agpcs depends on '${depends}', not on libopenblas0-openmp")
  endif()
endforeach()

run("${PYTHON}" "${SOURCE_DIR}/tests/house/check_binaries.py" --readelf "${READELF}"
  ${HARDENED} --not-in "${BUILD_DIR}" "${WORK_DIR}/root")

set(usr "${WORK_DIR}/root/usr")
set(model "${SOURCE_DIR}/samples/models/resnet50.onnx")
set(cluster "${SOURCE_DIR}/samples/clusters/v100x4-rtx3090x4.yaml")
run("${usr}/bin/agpcs-compile" "${model}" "${cluster}" -o "${WORK_DIR}/command.plan")
run("${CMAKE_COMMAND}" -E env "PYTHONPATH=${usr}/lib/python3/dist-packages" "${PYTHON}" -c
  "import agpcs, sys\nagpcs.plan(sys.argv[1], sys.argv[2]).save(sys.argv[3])" "${model}" "${cluster}" "${WORK_DIR}/package.plan")
run("${CMAKE_COMMAND}" -E compare_files "${WORK_DIR}/command.plan" "${WORK_DIR}/package.plan")
foreach(file include/agpcs/replayer.h include/agpcs/plan.h include/agpcs/status.h lib/cmake/agpcs/agpcs-config.cmake lib/libagpcs_runtime_replay.a)
  if(NOT EXISTS "${usr}/${file}")
    message(SEND_ERROR "libagpcs-dev has no /usr/${file}")
  endif()
endforeach()
