// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/device/clock.h"

#ifdef AGPCS_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <condition_variable>
#include <mutex>
#endif

#include <chrono>
#include <ctime>
#include <memory>
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

class ThreadClock final : public BusyClock {
 public:
  double read(bool /*ahead*/) override { return thread_seconds(); }
};

#ifdef AGPCS_TORCH_CUDA
// Where a stream waits until the host opens it. The stream's callback and the clock share it.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  // Not for ever: the host may wait for the device in an operator, or because the device's queue is
  // full.
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait_for(lock, std::chrono::milliseconds(200), [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// Counts between two events, of which the first one happens when the gate opens.
class CudaClock final : public BusyClock {
 public:
  explicit CudaClock(at::Device device) : device_(device.index()) {}
  ~CudaClock() override { let_go(); }
  CudaClock(const CudaClock&) = delete;
  CudaClock& operator=(const CudaClock&) = delete;

  double read(bool ahead) override {
    const c10::cuda::CUDAGuard guard(device_);
    const auto stream = at::cuda::getCurrentCUDAStream(device_);
    if (counting_) end_.record(stream);
    let_go();
    stream.synchronize();
    if (counting_) seconds_ += 1e-3 * static_cast<double>(begin_.elapsed_time(end_));
    if (ahead) {
      gate_ = std::make_shared<Gate>();
      auto shared = std::make_unique<std::shared_ptr<Gate>>(gate_);
      C10_CUDA_CHECK(cudaLaunchHostFunc(stream.stream(), wait_at, shared.get()));
      shared.release();  // to the callback
    }
    begin_.record(stream);
    counting_ = true;
    return seconds_;
  }
  void let_go() override {
    if (gate_) gate_->open();
    gate_ = nullptr;
  }

 private:
  static void wait_at(void* data) {
    const std::unique_ptr<std::shared_ptr<Gate>> gate(static_cast<std::shared_ptr<Gate>*>(data));
    (*gate)->wait();
  }

  const c10::DeviceIndex device_;
  at::cuda::CUDAEvent begin_{cudaEventDefault}, end_{cudaEventDefault};
  std::shared_ptr<Gate> gate_;
  bool counting_ = false;
  double seconds_ = 0;
};
#endif

}  // namespace

std::unique_ptr<BusyClock> make_busy_clock(at::Device device) {
#ifdef AGPCS_TORCH_CUDA
  if (device.is_cuda()) return std::make_unique<CudaClock>(device);
#else
  static_cast<void>(device);
#endif
  return std::make_unique<ThreadClock>();
}

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
  busy_.let_go();
  const std::vector<double> seconds = marks_->intervals();
  std::vector<OperatorTime> times;
  for (std::size_t i = 0; i < ops_.size(); ++i) times.push_back({ops_[i], seconds[i]});
  observer_.pass_done(pass, times);
}

}  // namespace agpcs
