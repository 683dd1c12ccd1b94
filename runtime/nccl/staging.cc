// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/staging.h"

#include "runtime/nccl/status.h"

#include <algorithm>

namespace agpcs {
namespace {

constexpr std::size_t kSmallestBlock = 4096;

std::size_t rounded(std::size_t bytes) {
  std::size_t size = kSmallestBlock;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

Result<StagingBlock> NcclStaging::take(std::size_t bytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [&](const StagingBlock& block) { return block.bytes >= bytes; });
  if (fits != free_.end()) {
    const StagingBlock block = *fits;
    free_.erase(fits);
    return block;
  }
  StagingBlock block;
  block.bytes = rounded(bytes);
  AGPCS_RETURN_IF_ERROR(cuda_status(cudaHostAlloc(&block.host, block.bytes, cudaHostAllocDefault),
                                    "allocate page-locked memory"));
  const Status status =
      cuda_status(cudaMalloc(&block.device, block.bytes), "allocate memory on the device");
  if (status.ok()) return block;
  cudaFreeHost(block.host);
  return status;
}

void NcclStaging::release() {
  for (const StagingBlock& block : free_) {
    cudaFree(block.device);
    cudaFreeHost(block.host);
  }
  free_.clear();
}

}  // namespace agpcs
