// SPDX-License-Identifier: Apache-2.0
// Replaces draw.cu where there is no CUDA compiler.
#include "runtime/torch/ops/draw.h"

namespace agpcs {

bool can_draw_on_gpu() { return false; }

cudaError_t draw_mask_on_gpu(const DrawnWords& /*words*/, std::uint64_t /*threshold*/,
                             bool* /*out*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t draw_even_on_gpu(const DrawnWords& /*words*/, double* /*out*/,
                             cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace agpcs
