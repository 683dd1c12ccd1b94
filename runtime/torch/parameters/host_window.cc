// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/parameters/host_window.h"

#include "ir/strategy/offload.h"
#include "runtime/torch/device/progress.h"

#ifdef AGPCS_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <optional>

namespace agpcs {
namespace {

constexpr auto kSlots = static_cast<std::size_t>(kOffloadWindow);
constexpr std::size_t kAlignment = 64;  // of ATen's own tensors

at::Tensor narrowed(const at::Tensor& whole, std::int64_t begin, std::int64_t size) {
  return whole.defined() ? whole.narrow(0, begin, size) : whole;
}

void copy_over(const at::Tensor& from, const at::Tensor& to) {
  if (from.defined()) to.copy_(from, /*non_blocking=*/true);
}

}  // namespace

at::Tensor host_state(std::int64_t elements, at::Device device) {
  if (device.is_cuda()) return host_memory({elements}, at::kFloat, device).zero_();
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  const std::size_t rounded =
      std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* const memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return at::from_blob(
             memory, {elements}, [](void* own) { std::free(own); },
             at::TensorOptions().dtype(at::kFloat))
      .zero_();
}

#ifdef AGPCS_TORCH_CUDA

/// The streams of copies, and what tells them of one another.
struct HostWindow::Copies {
  explicit Copies(at::Device device)
      : in(at::cuda::getStreamFromPool(false, device.index())),
        out(at::cuda::getStreamFromPool(false, device.index())) {}
  at::cuda::CUDAStream in, out;
  struct Events {
    at::cuda::CUDAEvent here, updated, gone;
  };
  std::array<Events, kSlots> of;
};

#else

struct HostWindow::Copies {};

#endif

HostWindow::HostWindow(at::Device device, int tensors, const std::vector<std::int64_t>& elements) {
  std::vector<std::int64_t> sizes(kSlots);
  std::size_t piece = 0;
  for (const std::int64_t all : elements) {
    for (std::int64_t begin = 0; begin < all; begin += kOffloadPiece) {
      std::int64_t& most = sizes[piece++ % kSlots];
      most = std::max(most, std::min(kOffloadPiece, all - begin));
    }
  }
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  for (const std::int64_t size : sizes) {
    slots_.push_back(
        {at::empty({size}, options), tensors > 1 ? at::empty({size}, options) : at::Tensor()});
  }
#ifdef AGPCS_TORCH_CUDA
  if (device.is_cuda()) copies_ = std::make_unique<Copies>(device);
#endif
}

HostWindow::~HostWindow() = default;

void HostWindow::begin() { next_ = 0; }

void HostWindow::for_each_piece(const UpdateTensors& of,
                                const std::function<void(const UpdateTensors&)>& update) {
  const std::int64_t all = of.value.numel();
  for (std::int64_t begin = 0; begin < all; begin += kOffloadPiece, ++next_) {
    const std::int64_t size = std::min(kOffloadPiece, all - begin);
    const Slot& slot = slots_[next_ % kSlots];
    const UpdateTensors host = {narrowed(of.value, begin, size), narrowed(of.gradient, begin, size),
                                narrowed(of.first, begin, size), narrowed(of.second, begin, size)};
    const UpdateTensors here = {host.value, host.gradient, narrowed(slot.first, 0, size),
                                narrowed(slot.second, 0, size)};
#ifdef AGPCS_TORCH_CUDA
    if (copies_) {
      Copies::Events& events = copies_->of[next_ % kSlots];
      const at::cuda::CUDAStream compute =
          at::cuda::getCurrentCUDAStream(copies_->in.device_index());
      {
        const at::cuda::CUDAStreamGuard guard(copies_->in);
        if (next_ >= kSlots) events.gone.block(copies_->in);
        copy_over(host.first, here.first);
        copy_over(host.second, here.second);
        events.here.record(copies_->in);
      }
      events.here.block(compute);
      update(here);
      events.updated.record(compute);
      const at::cuda::CUDAStreamGuard guard(copies_->out);
      events.updated.block(copies_->out);
      copy_over(here.first, host.first);
      copy_over(here.second, host.second);
      events.gone.record(copies_->out);
      continue;
    }
#endif
    copy_over(host.first, here.first);
    copy_over(host.second, here.second);
    update(here);
    copy_over(here.first, host.first);
    copy_over(here.second, host.second);
  }
}

void HostWindow::end() {
#ifdef AGPCS_TORCH_CUDA
  if (copies_) copies_->out.synchronize();
#endif
}

}  // namespace agpcs
