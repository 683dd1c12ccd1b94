# SPDX-License-Identifier: Apache-2.0
# The NCCL transport, a library of its own: the runtime is whole without it.
if(AGPCS_HAS_CUDA)
  agpcs_library(runtime_nccl FOLDER runtime INSTALL
    SOURCES nccl.cc nccl_communicator.cc nccl_lane.cc nccl_links.cc nccl_meeting.cc nccl_staging.cc nccl_status.cc
    DEPS runtime ir
    PRIVATE_DEPS NCCL::NCCL CUDA::cudart)
endif()
