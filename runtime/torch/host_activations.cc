// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/host_activations.h"

#include "runtime/torch/device/progress.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#ifdef AGPCS_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kAlignment = 64;  // of ATen's own tensors

/// Returns all of a storage as bytes.
at::Tensor bytes_of(const c10::Storage& storage, at::Device device) {
  const auto bytes = static_cast<std::int64_t>(storage.nbytes());
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device))
      .set_(storage, 0, {bytes}, {1});
}

at::Tensor unpinned(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* const memory = std::aligned_alloc(
      kAlignment, std::max(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  return at::from_blob(
      memory, {bytes}, [](void* own) { std::free(own); }, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

#ifdef AGPCS_TORCH_CUDA

struct HostCopies::Moment {
  at::cuda::CUDAEvent event;
};

struct HostCopies::Stream {
  explicit Stream(at::Device device) : own(at::cuda::getStreamFromPool(false, device.index())) {}
  at::cuda::CUDAStream own;
};

#else

struct HostCopies::Moment {};
struct HostCopies::Stream {};

#endif

HostCopies::HostCopies(at::Device device) : device_(device) {
#ifdef AGPCS_TORCH_CUDA
  if (device.is_cuda()) stream_ = std::make_unique<Stream>(device);
#endif
}

HostCopies::~HostCopies() = default;

at::Tensor HostCopies::take(std::int64_t bytes) {
  const auto free = free_.lower_bound(bytes);
  if (free == free_.end()) {
    return device_.is_cuda() ? host_memory({bytes}, at::kByte, device_) : unpinned(bytes);
  }
  at::Tensor memory = std::move(free->second);
  free_.erase(free);
  return memory;
}

void HostCopies::give_back(at::Tensor memory) {
  const std::int64_t bytes = memory.numel();
  free_.emplace(bytes, std::move(memory));
}

HostCopies::MomentPtr HostCopies::copy(const std::vector<at::Tensor>& from,
                                       const std::vector<at::Tensor>& to) {
#ifdef AGPCS_TORCH_CUDA
  if (stream_) {
    Moment given;
    given.event.record(at::cuda::getCurrentCUDAStream(device_.index()));
    const at::cuda::CUDAStreamGuard guard(stream_->own);
    given.event.block(stream_->own);
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i], /*non_blocking=*/true);
    auto ended = std::make_shared<Moment>();
    ended->event.record(stream_->own);
    return ended;
  }
#endif
  for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  return nullptr;
}

void HostCopies::await([[maybe_unused]] const MomentPtr& moment) {
#ifdef AGPCS_TORCH_CUDA
  if (moment) moment->event.block(at::cuda::getCurrentCUDAStream(device_.index()));
#endif
}

/// Memory that tensors share. `here` is it on the device, `there` its content in the host's memory:
/// one of them, or both while it is copied.
struct HostPass::Kept::Memory {
  Memory(HostCopies& by, c10::Storage storage, std::size_t with)
      : copies(by), here(std::move(storage)), segment(with) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (there.defined()) copies.give_back(std::move(there));
  }
  HostCopies& copies;
  c10::Storage here;
  at::Tensor there;        // may be longer
  std::int64_t bytes = 0;  // once it goes
  std::size_t segment;     // with which it goes
};

at::Tensor HostPass::Kept::tensor() const {
  const at::NoGradGuard no_gradients;
  return at::empty({0}, options_).set_(memory_->here, offset_, sizes_, strides_);
}

// After a pass that failed, a copy may be under way, to memory that is free from now on.
HostPass::~HostPass() { copies_.await(moment_); }

void HostPass::begin(std::size_t segment) {
  segment_ = segment;
  places_.clear();
}

HostPass::Kept HostPass::keep(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  std::shared_ptr<Memory>& memory = known_[storage.unsafeGetStorageImpl()];
  if (!memory) {
    const auto said = places_.find(storage.unsafeGetStorageImpl());
    const bool moves = storage.nbytes() > 0 && storage.device() == copies_.device();
    memory = std::make_shared<Memory>(copies_, storage,
                                      !moves                  ? kStays
                                      : said == places_.end() ? segment_
                                                              : said->second.segment);
    kept_.push_back(memory);
  }
  Kept kept;
  kept.memory_ = memory;
  kept.options_ = tensor.options();
  kept.sizes_ = tensor.sizes().vec();
  kept.strides_ = tensor.strides().vec();
  kept.offset_ = tensor.storage_offset();
  return kept;
}

void HostPass::place(const at::Tensor& tensor, std::size_t segment) {
  if (!tensor.has_storage()) return;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  places_.insert_or_assign(storage, Place{tensor.storage().getWeakStorageImpl(), segment});
  const auto known = known_.find(storage);
  if (known != known_.end() && known->second->segment != kStays) known->second->segment = segment;
}

void HostPass::begin_out(std::size_t segment) {
  Memories& own = of_[segment];
  const auto later = std::stable_partition(
      kept_.begin(), kept_.end(),
      [segment](const std::shared_ptr<Memory>& memory) { return memory->segment == segment; });
  own.assign(kept_.begin(), later);
  kept_.erase(kept_.begin(), later);
  for (const std::shared_ptr<Memory>& memory : own) {
    known_.erase(memory->here.unsafeGetStorageImpl());
  }
  if (copies_.device().is_cuda()) begin_copy(own, Way::kOut);
}

void HostPass::end_out(std::size_t segment) {
  const Memories& own = of_[segment];
  if (!copies_.device().is_cuda()) begin_copy(own, Way::kOut);
  copies_.await(moment_);
  for (const std::shared_ptr<Memory>& memory : own) memory->here = c10::Storage();
}

void HostPass::end_forward() {
  kept_.clear();
  known_.clear();
  places_.clear();
}

void HostPass::begin_in(std::size_t segment) {
  for (const std::shared_ptr<Memory>& memory : of_[segment]) {
    const at::Tensor here =
        at::empty({memory->bytes}, at::TensorOptions().dtype(at::kByte).device(copies_.device()));
    memory->here = here.storage();
  }
  begin_copy(of_[segment], Way::kIn);
}

void HostPass::end_in(std::size_t segment) {
  copies_.await(moment_);
  for (const std::shared_ptr<Memory>& memory : of_[segment]) {
    copies_.give_back(std::exchange(memory->there, {}));
  }
  of_.erase(segment);
}

void HostPass::begin_copy(const Memories& memories, Way way) {
  std::vector<at::Tensor> here, there;
  for (const std::shared_ptr<Memory>& memory : memories) {
    here.push_back(bytes_of(memory->here, copies_.device()));
    if (way == Way::kOut) {
      memory->bytes = here.back().numel();
      memory->there = copies_.take(memory->bytes);
    }
    there.push_back(memory->there.narrow(0, 0, memory->bytes));
  }
  moment_ = way == Way::kOut ? copies_.copy(here, there) : copies_.copy(there, here);
}

namespace {

thread_local HostPass* saves_to = nullptr;

/// A tensor that autograd has saved.
class Saved : public torch::autograd::SavedVariableHooks {
 public:
  explicit Saved(HostPass& pass) : pass_(pass) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    const at::Tensor alone = tensor.detach();
    if (alone.has_storage() && alone.layout() == at::kStrided) {
      kept_ = pass_.keep(alone);
      moves_ = true;
    } else {
      tensor_ = alone;
    }
  }
  at::Tensor call_unpack_hook() override { return moves_ ? kept_.tensor() : tensor_; }

 private:
  HostPass& pass_;
  HostPass::Kept kept_;
  at::Tensor tensor_;
  bool moves_ = false;
};

/// Autograd's engine, asked on each save where it goes. PyTorch's own does the same for Python.
class SavingEngine : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& get() {
    static auto* const engine = new SavingEngine;  // as PyTorch's own, it lives on with its threads
    return *engine;
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return saves_to == nullptr ? nullptr : std::make_unique<Saved>(*saves_to);
  }
};

}  // namespace

SavesToHost::SavesToHost(HostPass& pass) : before_(std::exchange(saves_to, &pass)) {}

SavesToHost::~SavesToHost() { saves_to = before_; }

bool SavesToHost::prepare() {
  using torch::autograd::Engine;
  if (&Engine::get_default_engine() == &SavingEngine::get()) return true;
  if (&Engine::get_default_engine() != &Engine::get_base_engine()) return false;
  torch::autograd::set_default_engine_stub(SavingEngine::get);
  return true;
}

}  // namespace agpcs
