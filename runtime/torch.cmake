# SPDX-License-Identifier: Apache-2.0
# The LibTorch executor, a library of its own: the runtime is whole without it.
if(AGPCS_HAS_TORCH)
  agpcs_library(runtime_torch FOLDER runtime
    SOURCES
      torch_adam.cc
      torch_blas.cc
      torch_clock.cc
      torch_cuts.cc
      torch_data.cc
      torch_device.cc
      torch_executor.cc
      torch_graph.cc
      torch_init.cc
      torch_npy.cc
      torch_ops.cc
      torch_ops_activation.cc
      torch_ops_conv.cc
      torch_ops_elementwise.cc
      torch_ops_index.cc
      torch_ops_linear.cc
      torch_ops_loss.cc
      torch_ops_norm.cc
      torch_ops_pool.cc
      torch_ops_reduce.cc
      torch_ops_resize.cc
      torch_ops_shape.cc
      torch_ops_softmax.cc
      torch_parameters.cc
      torch_progress.cc
      torch_stage.cc
      torch_threads.cc
    DEPS ir runtime
    PRIVATE_DEPS Torch::Torch ${CMAKE_DL_LIBS})
  target_compile_definitions(agpcs_runtime_torch PRIVATE $<$<TARGET_EXISTS:torch_cuda>:AGPCS_TORCH_CUDA>)
  target_precompile_headers(agpcs_runtime_torch PRIVATE <ATen/ATen.h>)  # half of what each source takes to compile
endif()
