// SPDX-License-Identifier: Apache-2.0
// NcclCommunicator: a communicator that never blocks its caller. Only one thread uses it.
#pragma once

#include "runtime/nccl/meeting.h"

#include <agpcs/status.h>

#include <nccl.h>

namespace agpcs {

class NcclCommunicator {
 public:
  NcclCommunicator() = default;
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  bool open() const { return handle_ != nullptr; }
  ncclComm_t get() const { return handle_; }

  /// Joins as `rank` of `size`; all ranks call it. It calls `pause` while others are missing.
  Status join(const ncclUniqueId& id, int rank, int size, const NcclPause& pause);
  /// Waits until `call`, an operation on this communicator which returned `result`, is on its CUDA
  /// stream or has failed.
  Status settle(ncclResult_t result, const char* call, const NcclPause& pause) const;
  /// Puts all operations on this communicator that `post` posts on their stream as one group.
  /// `post` gets a function that notes their results.
  template <typename Post>
  Status group(const NcclPause& pause, const Post& post) const {
    ncclResult_t result = ncclGroupStart();
    post([&](ncclResult_t part) {
      if (result == ncclSuccess && part != ncclInProgress) result = part;
    });
    const ncclResult_t ended = ncclGroupEnd();
    return settle(result == ncclSuccess ? ended : result, "ncclGroupEnd", pause);
  }
  /// Returns what has gone wrong since, such as a lost connection.
  Status health() const;

  /// Starts to let enqueued operations leave this rank. Call `settle` to end that, then `destroy`.
  ncclResult_t finalize() const;
  void destroy();
  /// Stops operations that run on the GPU, and leaves the communicator.
  void abort();

 private:
  ncclComm_t handle_ = nullptr;
};

}  // namespace agpcs
