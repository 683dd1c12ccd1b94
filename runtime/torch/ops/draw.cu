// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/ops/draw.h"

#include <algorithm>
#include <cstdint>

namespace agpcs {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;

struct Words {
  std::uint32_t word[4];
};

// The same as philox in ir/base/rng.cc.
__device__ Words philox_of(std::uint64_t key, std::uint64_t low, std::uint64_t high) {
  std::uint32_t c0 = static_cast<std::uint32_t>(low), c1 = static_cast<std::uint32_t>(low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(high), c3 = static_cast<std::uint32_t>(high >> 32);
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53U, c0), low0 = 0xD2511F53U * c0;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57U, c2), low1 = 0xCD9E8D57U * c2;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

struct PutMask {
  std::uint64_t threshold;
  bool* out;
  __device__ void operator()(std::int64_t at, std::uint32_t word) const {
    out[at] = word >= threshold;
  }
};

struct PutEven {
  double* out;
  __device__ void operator()(std::int64_t at, std::uint32_t word) const {
    out[at] = (word + 0.5) / 4294967296.0;
  }
};

template <typename Put>
__global__ void draw(DrawnWords words, Put put) {
  const std::int64_t quads = (words.per_sample + 3) / 4;  // of a sample
  const std::int64_t first = words.first_sample + (words.before == nullptr ? 0 : *words.before);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < words.samples * quads; i += stride) {
    const std::int64_t sample = i / quads, quad = i % quads;
    const Words drawn = philox_of(words.key, static_cast<std::uint64_t>(quad),
                                  static_cast<std::uint64_t>(first + sample));
    for (int k = 0; k < 4 && quad * 4 + k < words.per_sample; ++k) {
      put(sample * words.per_sample + quad * 4 + k, drawn.word[k]);
    }
  }
}

template <typename Put>
cudaError_t launch(const DrawnWords& words, const Put& put, cudaStream_t stream) {
  const std::int64_t quads = words.samples * ((words.per_sample + 3) / 4);
  if (quads == 0) return cudaSuccess;
  const std::int64_t blocks = std::min((quads + kThreads - 1) / kThreads, kMostBlocks);
  draw<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(words, put);
  return cudaGetLastError();
}

}  // namespace

bool can_draw_on_gpu() { return true; }

cudaError_t draw_mask_on_gpu(const DrawnWords& words, std::uint64_t threshold, bool* out,
                             cudaStream_t stream) {
  return launch(words, PutMask{threshold, out}, stream);
}

cudaError_t draw_even_on_gpu(const DrawnWords& words, double* out, cudaStream_t stream) {
  return launch(words, PutEven{out}, stream);
}

}  // namespace agpcs
