// SPDX-License-Identifier: Apache-2.0
// Turns errors of CUDA and NCCL into ours, in their own words.
#pragma once

#include <agpcs/status.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 14, 0)
#error "AGPCS needs NCCL 2.14 or later: earlier ones have no communicators that do not block"
#endif

namespace agpcs {

/// Returns Ok, or kUnavailable: "CUDA cannot create a stream: out of memory".
Status cuda_status(cudaError_t error, const char* cannot);

/// Returns Ok, or an error "ncclSend: unhandled cuda error: ...": kPeerFailed if the fault may
/// be another rank's, kInternal if NCCL refuses our call, else kUnavailable. `communicator` may
/// be null.
Status nccl_status(ncclResult_t result, ncclComm_t communicator, const char* call);

/// Returns "2.28.9".
std::string nccl_version_text(int version);

/// Makes `device` the calling thread's device for the length of a scope.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device);
  ~CudaDeviceScope();
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

  /// Returns whether that worked.
  Status status() const { return cuda_status(error_, "use the device"); }

 private:
  int before_ = 0;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace agpcs
