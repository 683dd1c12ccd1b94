// SPDX-License-Identifier: Apache-2.0
// NcclCommunicator: a communicator that never blocks its caller. One thread uses it.
#pragma once

#include "runtime/nccl_meeting.h"

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

  /// Joins as `rank` of `size`; all of them call it. `pause` is called while others are missing.
  Status join(const ncclUniqueId& id, int rank, int size, const NcclPause& pause);
  /// Ends `call`, an operation on this communicator which returned `result`: on return it is on its
  /// CUDA stream, or has failed.
  Status settle(ncclResult_t result, const char* call, const NcclPause& pause) const;
  /// What has gone wrong since, such as a lost connection.
  Status health() const;

  /// Starts to let what has been enqueued leave this rank; `settle` ends that. Then `destroy`.
  ncclResult_t finalize() const;
  void destroy();
  /// Ends operations that run on the GPU, and leaves.
  void abort();

 private:
  ncclComm_t handle_ = nullptr;
};

}  // namespace agpcs
