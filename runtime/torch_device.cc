// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch_executor.h"

#include <torch/version.h>

#ifdef AGPCS_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace agpcs {

std::string libtorch_version() { return TORCH_VERSION; }

Accelerator accelerator_of([[maybe_unused]] const std::string& device) {
#ifdef AGPCS_TORCH_CUDA
  const at::Device at_device(device);
  if (at_device.is_cuda()) {
    const auto* properties = at::cuda::getDeviceProperties(at_device.index());
    return {properties->name, static_cast<std::int64_t>(properties->totalGlobalMem)};
  }
#endif
  return {};
}

}  // namespace agpcs
