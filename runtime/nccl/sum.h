// SPDX-License-Identifier: Apache-2.0
// Sums on a GPU, for flows, because NCCL cannot add what it receives.
#pragma once

#include <agpcs/types.h>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace agpcs {

/// Returns whether the library was built with a CUDA compiler, which the sums need.
bool can_add_on_gpu();

/// Does what `add_into` (runtime/support/sum.h) does, on GPU memory, enqueued on `stream`. Needs:
/// can_add_on_gpu(), can_sum(type).
cudaError_t add_on_gpu(void* to, const void* from, std::size_t elements, DType type,
                       cudaStream_t stream);

}  // namespace agpcs
