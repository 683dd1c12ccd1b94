// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/sum.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

namespace agpcs {
namespace {

constexpr unsigned kThreads = 256;
// Enough blocks to keep any GPU's memory busy beside NCCL's own kernels.
constexpr std::size_t kMostBlocks = 1024;

template <typename T>
__device__ T sum(T a, T b) {
  return a + b;
}
// Sums in float and rounds once, as CPUs do.
template <>
__device__ __half sum(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
template <>
__device__ __nv_bfloat16 sum(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

template <typename T>
__global__ void add(T* to, const T* from, std::size_t elements) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < elements; i += stride) to[i] = sum(to[i], from[i]);
}

template <typename T>
cudaError_t launch(void* to, const void* from, std::size_t elements, cudaStream_t stream) {
  const std::size_t blocks = std::min((elements + kThreads - 1) / kThreads, kMostBlocks);
  add<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<T*>(to), static_cast<const T*>(from), elements);
  return cudaGetLastError();
}

}  // namespace

bool can_add_on_gpu() { return true; }

cudaError_t add_on_gpu(void* to, const void* from, std::size_t elements, DType type,
                       cudaStream_t stream) {
  if (elements == 0) return cudaSuccess;
  switch (type) {
    case DType::kFp32:
      return launch<float>(to, from, elements, stream);
    case DType::kFp64:
      return launch<double>(to, from, elements, stream);
    case DType::kFp16:
      return launch<__half>(to, from, elements, stream);
    case DType::kBf16:
      return launch<__nv_bfloat16>(to, from, elements, stream);
    case DType::kInt64:
      return launch<std::int64_t>(to, from, elements, stream);
    case DType::kInt32:
      return launch<std::int32_t>(to, from, elements, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace agpcs
