// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/status.h"

#include <fmt/format.h>

namespace agpcs {
namespace {

StatusCode code_of(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
    case ncclSystemError:  // for instance a lost connection
      return StatusCode::kPeerFailed;
    case ncclInvalidArgument:
      return StatusCode::kInternal;
    default:  // includes ncclInvalidUsage: two ranks on one GPU, where NCCL does not allow it
      return StatusCode::kUnavailable;
  }
}

}  // namespace

Status cuda_status(cudaError_t error, const char* cannot) {
  if (error == cudaSuccess) return {};
  [[maybe_unused]] const cudaError_t cleared = cudaGetLastError();  // clears it for later calls
  return {StatusCode::kUnavailable,
          fmt::format("CUDA cannot {}: {}", cannot, cudaGetErrorString(error))};
}

Status nccl_status(ncclResult_t result, ncclComm_t communicator, const char* call) {
  if (result == ncclSuccess) return {};
  std::string text = fmt::format("{}: {}", call, ncclGetErrorString(result));
  const char* detail = ncclGetLastError(communicator);
  if (detail != nullptr && *detail != '\0') text += fmt::format(": {}", detail);
  while (text.back() == '\n') text.pop_back();
  return {code_of(result), std::move(text)};
}

std::string nccl_version_text(int version) {
  // This format is that of version 2.9 and later; older versions do not run here.
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CudaDeviceScope::CudaDeviceScope(int device) {
  error_ = cudaGetDevice(&before_);
  if (error_ == cudaSuccess) error_ = cudaSetDevice(device);
}

CudaDeviceScope::~CudaDeviceScope() {
  if (error_ == cudaSuccess) cudaSetDevice(before_);
}

}  // namespace agpcs
