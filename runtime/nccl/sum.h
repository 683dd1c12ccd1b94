// SPDX-License-Identifier: Apache-2.0
// Sums on a GPU, for flows: NCCL has no receive that adds.
#pragma once

#include <agpcs/types.h>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace agpcs {

/// Whether the library was built with a CUDA compiler, which the sums need.
bool can_add_on_gpu();

/// As `add_into` (runtime/sum.h), on GPU memory, enqueued on `stream`. Needs: can_add_on_gpu(),
/// can_sum(type).
cudaError_t add_on_gpu(void* to, const void* from, std::size_t elements, DType type,
                       cudaStream_t stream);

}  // namespace agpcs
