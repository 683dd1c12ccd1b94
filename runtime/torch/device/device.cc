// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/executor.h"
#include "runtime/torch/stage.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/version.h>

#ifdef AGPCS_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <utility>

namespace agpcs {
namespace {

class TensorMemory final : public DeviceMemory {
 public:
  explicit TensorMemory(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  Buffer buffer() override {
    return {tensor_.data_ptr(), tensor_.nbytes(), DType::kFp32, tensor_.is_cuda()};
  }

 private:
  at::Tensor tensor_;
};

}  // namespace

std::string libtorch_version() { return TORCH_VERSION; }

Result<Accelerator> accelerator_of([[maybe_unused]] const std::string& device) {
#ifdef AGPCS_TORCH_CUDA
  try {
    const at::Device at_device(device);
    if (at_device.is_cuda()) {
      const auto* properties = at::cuda::getDeviceProperties(at_device.index());
      return Accelerator{properties->name, static_cast<std::int64_t>(properties->totalGlobalMem)};
    }
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable, fmt::format("device '{}': {}", device, brief(error)));
  }
#endif
  return Accelerator{};
}

std::int64_t peak_memory_of([[maybe_unused]] const std::string& device) {
#ifdef AGPCS_TORCH_CUDA
  const at::Device at_device(device);
  if (at_device.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(at_device.index());
    constexpr auto kOfAllPools =
        static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return stats.allocated_bytes[kOfAllPools].peak;
  }
#endif
  return 0;
}

Result<std::unique_ptr<DeviceMemory>> allocate_on(const std::string& device, std::int64_t bytes) {
  constexpr std::int64_t kElement = sizeof(float);
  try {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(at::Device(device));
    std::unique_ptr<DeviceMemory> memory =
        std::make_unique<TensorMemory>(at::zeros({(bytes + kElement - 1) / kElement}, options));
    return memory;
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{} bytes on device '{}': {}", bytes, device, brief(error)));
  }
}

}  // namespace agpcs
