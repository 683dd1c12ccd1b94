// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/device/progress.h"

#ifdef AGPCS_TORCH_CUDA
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#endif

#include <chrono>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

class HostLoss final : public StepLoss {
 public:
  void clear() override { sum_ = 0; }
  void add(const at::Tensor& part) override { sum_ += part.item<double>(); }
  double value() override { return sum_; }

 private:
  double sum_ = 0;
};

#ifdef AGPCS_TORCH_CUDA

bool captured() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// A moment on the current stream. If it is recorded, each replay sets it anew.
class CudaMoment {
 public:
  CudaMoment() = default;
  ~CudaMoment() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  CudaMoment(const CudaMoment&) = delete;
  CudaMoment& operator=(const CudaMoment&) = delete;

  void record() {
    if (event_ == nullptr) C10_CUDA_CHECK(cudaEventCreate(&event_));
    C10_CUDA_CHECK(
        cudaEventRecordWithFlags(event_, at::cuda::getCurrentCUDAStream(),
                                 captured() ? cudaEventRecordExternal : cudaEventRecordDefault));
  }
  void synchronize() const { C10_CUDA_CHECK(cudaEventSynchronize(event_)); }
  std::int64_t nanoseconds_until(const CudaMoment& later) const {
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_, later.event_));
    return static_cast<std::int64_t>(1e6 * static_cast<double>(milliseconds));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Events lie on the stream that is current when they are recorded: the one that computes. The
// host's clock is read when the step's last event has come; the other times are computed back
// from it.
class CudaComputeTimes final : public ComputeTimes {
 public:
  explicit CudaComputeTimes(std::size_t slots) : begins_(slots), ends_(slots) {}
  void begin(std::size_t slot) override { begins_[slot].record(); }
  void end(std::size_t slot) override {
    ends_[slot].record();
    last_ = slot;
    awaited_ = false;
  }
  void replayed() override { awaited_ = false; }
  InstructionTime of(std::size_t slot) override {
    if (!awaited_) {
      ends_[last_].synchronize();
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      now_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
      awaited_ = true;
    }
    const std::int64_t end = now_ - ends_[slot].nanoseconds_until(ends_[last_]);
    return {end - begins_[slot].nanoseconds_until(ends_[slot]), end};
  }

 private:
  std::vector<CudaMoment> begins_, ends_;
  std::size_t last_ = 0;
  bool awaited_ = false;
  std::int64_t now_ = 0;
};

// Sums up on the device, and copies the sum to the host after each part.
class CudaLoss final : public StepLoss {
 public:
  explicit CudaLoss(at::Device device)
      : sum_(at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(device))),
        host_(host_memory({1}, at::kDouble, device)) {}
  void clear() override {
    any_ = false;
    sum_.zero_();
  }
  void add(const at::Tensor& part) override {
    const at::NoGradGuard no_grad;
    sum_.add_(part.detach().to(at::kDouble));
    host_.copy_(sum_, /*non_blocking=*/true);
    any_ = true;
    recorded_ = captured();
    if (!recorded_) copied_.record();
  }
  double value() override {
    if (!any_) return 0;
    if (!recorded_) copied_.synchronize();
    return *host_.data_ptr<double>();
  }

 private:
  at::Tensor sum_, host_;
  at::cuda::CUDAEvent copied_;
  bool any_ = false, recorded_ = false;
};

#endif

}  // namespace

std::unique_ptr<ComputeTimes> make_compute_times([[maybe_unused]] at::Device device,
                                                 [[maybe_unused]] std::size_t slots) {
#ifdef AGPCS_TORCH_CUDA
  if (device.is_cuda()) return std::make_unique<CudaComputeTimes>(slots);
#endif
  return nullptr;
}

std::unique_ptr<StepLoss> make_step_loss([[maybe_unused]] at::Device device) {
#ifdef AGPCS_TORCH_CUDA
  if (device.is_cuda()) return std::make_unique<CudaLoss>(device);
#endif
  return std::make_unique<HostLoss>();
}

at::Tensor host_memory(const std::vector<std::int64_t>& dims, at::ScalarType type,
                       at::Device device) {
  return at::empty(dims, at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
}

}  // namespace agpcs
