// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/worker_pool.h"

namespace agpcs {

WorkerPool::WorkerPool(int workers) {
  for (int worker = 1; worker < workers; ++worker) {
    threads_.emplace_back([this, worker] { serve(worker); });
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(const std::function<void(int)>& work) {
  if (!threads_.empty()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    busy_ = static_cast<int>(threads_.size());
    ++round_;
    begin_.notify_all();
  }
  work(0);
  if (threads_.empty()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  end_.wait(lock, [this] { return busy_ == 0; });
}

void WorkerPool::serve(int worker) {
  std::uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    begin_.wait(lock, [&] { return closing_ || round_ != seen; });
    if (closing_) return;
    seen = round_;
    const std::function<void(int)>& work = *work_;
    lock.unlock();
    work(worker);
    lock.lock();
    if (--busy_ == 0) end_.notify_one();
  }
}

}  // namespace agpcs
