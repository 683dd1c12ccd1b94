// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/device/graph.h"

#include "runtime/torch/executor.h"
#include "runtime/torch/stage.h"

#include <fmt/format.h>

#ifdef AGPCS_TORCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <exception>
#include <utility>

namespace agpcs {

#ifdef AGPCS_TORCH_CUDA
namespace {

// A pool of LibTorch's allocator for captured streams.
class CudaGraphMemory final : public GraphMemory {
 public:
  explicit CudaGraphMemory(c10::DeviceIndex device)
      : device_(device), pool_(at::cuda::graph_pool_handle()) {}
  ~CudaGraphMemory() override {
    if (used_) c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);
  }
  CudaGraphMemory(const CudaGraphMemory&) = delete;
  CudaGraphMemory& operator=(const CudaGraphMemory&) = delete;

  void begin() override {
    // While a capture is under way, the allocator does not release memory that it caches.
    c10::cuda::CUDACachingAllocator::emptyCache();
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(device_, pool_, [](cudaStream_t stream) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
             status == cudaStreamCaptureStatusActive;
    });
    used_ = true;
  }
  void end() override { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_); }

 private:
  const c10::DeviceIndex device_;
  const at::cuda::MempoolId_t pool_;
  bool used_ = false;
};

}  // namespace
#endif

std::unique_ptr<GraphMemory> make_graph_memory([[maybe_unused]] at::Device device) {
#ifdef AGPCS_TORCH_CUDA
  if (device.is_cuda()) return std::make_unique<CudaGraphMemory>(device.index());
#endif
  return nullptr;
}

Result<void*> own_compute_stream([[maybe_unused]] const std::string& device) {
#ifdef AGPCS_TORCH_CUDA
  try {
    const at::Device at_device(device);
    if (at_device.is_cuda()) {
      c10::cuda::set_device(at_device.index());
      const auto stream = c10::cuda::getStreamFromPool(false, at_device.index());
      c10::cuda::setCurrentCUDAStream(stream);
      return static_cast<void*>(stream.stream());
    }
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable, fmt::format("device '{}': {}", device, brief(error)));
  }
#endif
  return static_cast<void*>(nullptr);
}

void HeldInputs::allocate(const std::vector<HeldInput>& inputs,
                          const std::vector<std::int64_t>& samples, at::Device device) {
  by_micro_batch_.assign(samples.size(), {});
  for (std::size_t m = 0; m < samples.size(); ++m) {
    for (const HeldInput& input : inputs) {
      const auto here = at::TensorOptions().dtype(computed_type(input.type)).device(device);
      by_micro_batch_[m].push_back({input.id, at::zeros(dims_at(input.shape, samples[m]), here)});
    }
  }
}

void HeldInputs::put(std::size_t micro_batch,
                     std::unordered_map<TensorId, at::Tensor>& values) const {
  for (const Held& held : by_micro_batch_[micro_batch]) values[held.id] = held.here;
}

void HeldInputs::load(std::size_t micro_batch, const std::vector<at::Tensor>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    by_micro_batch_[micro_batch][i].here.copy_(values[i], /*non_blocking=*/true);
  }
}

}  // namespace agpcs
