// SPDX-License-Identifier: Apache-2.0
// NcclStaging: memory through which CPU buffers travel, since NCCL moves what is on GPUs.
#pragma once

#include <agpcs/status.h>

#include <cstddef>
#include <vector>

namespace agpcs {

/// Twice the same bytes: in page-locked CPU memory, which the GPU copies from and to while the CPU
/// goes on, and on the GPU.
struct StagingBlock {
  void* host = nullptr;
  void* device = nullptr;
  std::size_t bytes = 0;
};

/// One thread, with the GPU current. Blocks are kept for reuse: only growing beyond all that was in
/// use before allocates, which may wait for the GPU.
class NcclStaging {
 public:
  NcclStaging() = default;
  ~NcclStaging() { release(); }
  NcclStaging(const NcclStaging&) = delete;
  NcclStaging& operator=(const NcclStaging&) = delete;

  /// A block of at least `bytes`. Errors: kUnavailable (out of memory).
  Result<StagingBlock> take(std::size_t bytes);
  void give(const StagingBlock& block) { free_.push_back(block); }
  /// Frees all blocks that were given back.
  void release();

 private:
  std::vector<StagingBlock> free_;
};

}  // namespace agpcs
