// SPDX-License-Identifier: Apache-2.0
// The transport for processes that compute on NVIDIA GPUs: NCCL between all ranks, one GPU each.
#pragma once

#include <agpcs/bootstrap.h>
#include <agpcs/transport.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct NcclOptions {
  int device = 0;  ///< this rank's GPU, by CUDA's number; no two ranks share one
  /// The stream (a cudaStream_t) that computes what is sent and summed. Operations start after the
  /// work that it has when they are enqueued. Null: the default stream, which is LibTorch's, too.
  void* compute_stream = nullptr;
  /// Ordered pairs (sender, receiver) to connect at once, the same on every rank. Others connect at
  /// their first message, which then takes longer.
  std::vector<std::pair<int, int>> links;
  /// Longest wait for other ranks in `connect_nccl` and in `open_group`.
  std::chrono::milliseconds connect_limit{120000};
};

/// Why this machine cannot hold `ranks` ranks of an NCCL job; empty when it can.
std::string nccl_obstacle(int ranks = 1);

/// Joins this rank's GPU with those of all others, over identifiers exchanged through `bootstrap`,
/// which outlives the transport. All ranks call it. A failure that the bootstrap hears of aborts
/// the transport; `abort` reports to the bootstrap. Errors: kUnavailable (no such device; NCCL's
/// own words), or the job's failure.
///
/// Buffers may be on the GPU, or in CPU memory: those are copied by way of the GPU, fit for a few
/// numbers. Beyond what `Transport` asks, messages of one ordered pair must be received in the
/// order in which they are sent, whatever their tags, as every verified plan does: NCCL knows no
/// tags.
Result<std::unique_ptr<Transport>> connect_nccl(Bootstrap& bootstrap,
                                                const NcclOptions& options = {});

}  // namespace agpcs
