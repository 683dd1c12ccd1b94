// SPDX-License-Identifier: Apache-2.0
// NCCL is the transport for processes that compute on NVIDIA GPUs: it joins all ranks, with one GPU
// each, or several ranks on a GPU for tests.
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
  /// CUDA's number of this rank's GPU. No two ranks share one, unless NCCL allows it
  /// (`nccl_device`).
  int device = 0;
  /// The stream (a cudaStream_t) that computes what is sent and summed. An operation starts after
  /// the work that this stream has when the operation is enqueued. Null: the default stream, which
  /// LibTorch uses, too.
  void* compute_stream = nullptr;
  /// Ordered pairs (sender, receiver) to connect at once; all ranks pass the same ones. Other pairs
  /// connect at their first message, which then takes longer.
  std::vector<std::pair<int, int>> links;
  /// Longest wait for other ranks in `connect_nccl` and in `open_group`.
  std::chrono::milliseconds connect_limit{120000};
};

/// Returns why this machine cannot hold `ranks` ranks of an NCCL job, or an empty string if it can.
std::string nccl_obstacle(int ranks = 1);

/// Returns CUDA's number of the GPU for a machine's rank `local_rank`: that number itself, or, if
/// ranks may share GPUs, its remainder by the number of GPUs. They may with NCCL 2.30 or later and
/// NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment. Such ranks slow each other down.
int nccl_device(int local_rank);

/// Joins this rank's GPU with those of all other ranks. The ranks exchange identifiers through
/// `bootstrap`, which must outlive the transport. All ranks call it. A failure that the bootstrap
/// hears of aborts the transport; `abort` reports to the bootstrap. Errors: kUnavailable (no such
/// device, or an error of NCCL in its own words), or the job's failure.
///
/// Buffers may be on the GPU or in CPU memory. Those in CPU memory are copied by way of the GPU,
/// which suits only a few numbers. Beyond the rules of `Transport`, a receiver must receive the
/// messages of one ordered pair in the order in which they are sent, because NCCL does not know
/// tags. Every verified plan does so.
Result<std::unique_ptr<Transport>> connect_nccl(Bootstrap& bootstrap,
                                                const NcclOptions& options = {});

}  // namespace agpcs
