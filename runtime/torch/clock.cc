// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/clock.h"

#ifdef AGPCS_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#endif

#include <chrono>
#include <ctime>
#include <utility>

namespace agpcs {
namespace {

// Returns the thread's processor time, which leaves out the time in which the system stops the
// thread: a quota's stalls, other processes.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class ThreadMarks final : public TimeMarks {
 public:
  void clear() override { marks_.clear(); }
  void mark() override { marks_.push_back(thread_seconds()); }
  std::vector<double> intervals() override {
    std::vector<double> all;
    for (std::size_t i = 1; i < marks_.size(); ++i) all.push_back(marks_[i] - marks_[i - 1]);
    return all;
  }

 private:
  std::vector<double> marks_;
};

#ifdef AGPCS_TORCH_CUDA
class CudaMarks final : public TimeMarks {
 public:
  void clear() override { used_ = 0; }
  void mark() override {
    if (used_ == events_.size()) events_.emplace_back(cudaEventDefault);
    events_[used_++].record();
  }
  std::vector<double> intervals() override {
    std::vector<double> all;
    if (used_ > 0) events_[used_ - 1].synchronize();
    for (std::size_t i = 1; i < used_; ++i) {
      all.push_back(1e-3 * static_cast<double>(events_[i - 1].elapsed_time(events_[i])));
    }
    return all;
  }

 private:
  std::vector<at::cuda::CUDAEvent> events_;  // made once, recorded in every pass
  std::size_t used_ = 0;
};
#endif

}  // namespace

double busy_seconds_of(at::Device device) {
  if (device.is_cpu()) return thread_seconds();
#ifdef AGPCS_TORCH_CUDA
  at::cuda::getCurrentCUDAStream(device.index()).synchronize();
#endif
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::unique_ptr<TimeMarks> make_time_marks(at::Device device) {
  if (device.is_cpu()) return std::make_unique<ThreadMarks>();
#ifdef AGPCS_TORCH_CUDA
  return std::make_unique<CudaMarks>();
#else
  throw KernelError("operators can be timed on 'cpu' only: this build's LibTorch has no CUDA");
#endif
}

void PassClock::start() {
  ops_.clear();
  known_nodes_.clear();
  marks_->clear();
  marks_->mark();
  running_ = true;
}

void PassClock::begin(OpId op) {
  if (!running_) return;
  if (!ops_.empty()) marks_->mark();
  ops_.push_back(op);
}

void PassClock::await_backward(OpId op, const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || output.is_leaf()) continue;
    if (!known_nodes_.insert(output.grad_fn().get()).second) continue;
    output.register_hook([this, op](const at::Tensor&) {
      if (ops_.empty() || ops_.back() != op) begin(op);
    });
  }
}

void PassClock::stop(Opcode pass) {
  if (ops_.empty()) return;
  marks_->mark();
  running_ = false;
  const std::vector<double> seconds = marks_->intervals();
  std::vector<OperatorTime> times;
  for (std::size_t i = 0; i < ops_.size(); ++i) times.push_back({ops_[i], seconds[i]});
  observer_.pass_done(pass, times);
}

}  // namespace agpcs
