// SPDX-License-Identifier: Apache-2.0
// NcclStaging: memory through which CPU buffers travel, since NCCL only moves memory of GPUs.
#pragma once

#include <agpcs/status.h>

#include <cstddef>
#include <vector>

namespace agpcs {

/// Two blocks of one size: one in page-locked CPU memory, from and to which the GPU copies while
/// the CPU goes on, and one on the GPU.
struct StagingBlock {
  void* host = nullptr;
  void* device = nullptr;
  std::size_t bytes = 0;
};

/// A pool of blocks. Only one thread uses it, with the GPU current. It keeps blocks for reuse; it
/// allocates, which may wait for the GPU, only when more is in use than ever before.
class NcclStaging {
 public:
  NcclStaging() = default;
  ~NcclStaging() { release(); }
  NcclStaging(const NcclStaging&) = delete;
  NcclStaging& operator=(const NcclStaging&) = delete;

  /// Returns a block of at least `bytes`. Errors: kUnavailable (out of memory).
  Result<StagingBlock> take(std::size_t bytes);
  void give(const StagingBlock& block) { free_.push_back(block); }
  /// Frees all blocks that the caller gave back.
  void release();

 private:
  std::vector<StagingBlock> free_;
};

}  // namespace agpcs
