# SPDX-License-Identifier: Apache-2.0
# The NCCL transport, a library of its own: the runtime is whole without it.
if(AGPCS_HAS_CUDA)
  # The one kernel is compiled by nvcc itself: a language of CMake's would bring its own runtime to every target.
  if(CUDAToolkit_NVCC_EXECUTABLE)
    set(nccl_sum "${CMAKE_CURRENT_BINARY_DIR}/nccl_sum.o")
    add_custom_command(
      OUTPUT "${nccl_sum}"
      COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" -c -O3 -std=c++17 -arch=all-major -Xcompiler=-fPIC
              "-I${PROJECT_SOURCE_DIR}" "-I${PROJECT_SOURCE_DIR}/ir/include" -o "${nccl_sum}"
              "${CMAKE_CURRENT_SOURCE_DIR}/nccl_sum.cu"
      DEPENDS nccl_sum.cu nccl_sum.h "${PROJECT_SOURCE_DIR}/ir/include/agpcs/types.h"
      COMMENT "Compiling runtime/nccl_sum.cu" VERBATIM)
  else()
    set(nccl_sum nccl_sum_absent.cc)
  endif()
  agpcs_library(runtime_nccl FOLDER runtime INSTALL
    SOURCES nccl.cc nccl_communicator.cc nccl_flow.cc nccl_graph.cc nccl_lane.cc nccl_lane_recording.cc nccl_links.cc nccl_meeting.cc nccl_staging.cc nccl_status.cc
            "${nccl_sum}"
    DEPS runtime ir
    PRIVATE_DEPS NCCL::NCCL CUDA::cudart)
endif()
