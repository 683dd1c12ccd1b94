// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/communicator.h"

#include "runtime/nccl/status.h"

#include <chrono>
#include <thread>

namespace agpcs {

Status NcclCommunicator::join(const ncclUniqueId& id, int rank, int size, const NcclPause& pause) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = ncclCommInitRankConfig(&handle_, size, id, rank, &config);
  if (handle_ == nullptr) return nccl_status(result, nullptr, "ncclCommInitRankConfig");
  return settle(result, "ncclCommInitRankConfig", pause);
}

// NCCL puts an operation on its stream within some hundred microseconds, on a thread of its own;
// only what waits for other ranks takes longer.
Status NcclCommunicator::settle(ncclResult_t result, const char* call,
                                const NcclPause& pause) const {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kSoon{500};
  const Clock::time_point begin = Clock::now();
  while (result == ncclInProgress) {
    if (Clock::now() - begin < kSoon) {
      std::this_thread::yield();
    } else {
      AGPCS_RETURN_IF_ERROR(pause());
    }
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  return nccl_status(result, handle_, call);
}

Status NcclCommunicator::health() const {
  if (!open()) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
  if (asked == ncclSuccess && state == ncclInProgress) return {};
  return nccl_status(asked == ncclSuccess ? state : asked, handle_, "NCCL");
}

ncclResult_t NcclCommunicator::finalize() const {
  return open() ? ncclCommFinalize(handle_) : ncclSuccess;
}

// Errors are ignored: the handle is gone in any case.
void NcclCommunicator::destroy() {
  if (open()) ncclCommDestroy(handle_);
  handle_ = nullptr;
}

void NcclCommunicator::abort() {
  if (open()) ncclCommAbort(handle_);
  handle_ = nullptr;
}

}  // namespace agpcs
