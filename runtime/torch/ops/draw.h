// SPDX-License-Identifier: Apache-2.0
// Random numbers of a tensor's elements, drawn on a GPU: those that a CPU draws (random.cc).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace agpcs {

/// Which words the elements of a tensor get: element e of row s has word e % 4 of
/// philox(key, e / 4, *before + first_sample + s). Rows are samples, one after the other.
struct DrawnWords {
  std::uint64_t key = 0;
  std::int64_t samples = 0, per_sample = 0;
  std::int64_t first_sample = 0;
  const std::int64_t* before = nullptr;  ///< on the GPU, read when the kernel runs; nullptr: 0
};

/// Returns whether the library was built with a CUDA compiler, which drawing on a GPU needs.
bool can_draw_on_gpu();

/// Writes, on `stream`, whether each element's word is at least `threshold`. Needs:
/// can_draw_on_gpu().
cudaError_t draw_mask_on_gpu(const DrawnWords& words, std::uint64_t threshold, bool* out,
                             cudaStream_t stream);
/// Likewise each element's number (word + 0.5) / 2^32.
cudaError_t draw_even_on_gpu(const DrawnWords& words, double* out, cudaStream_t stream);

}  // namespace agpcs
