// SPDX-License-Identifier: Apache-2.0
// WorkerPool: threads that wait for work, so that a batch of short tasks costs no thread starts.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace agpcs {

class WorkerPool {
 public:
  /// Needs: `workers` is at least 1. The caller's thread is one of them.
  explicit WorkerPool(int workers);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  int workers() const { return static_cast<int>(threads_.size()) + 1; }
  /// Calls `work(worker)` once for each worker, all at the same time, and returns when all are
  /// done. `work` must not throw.
  void run(const std::function<void(int worker)>& work);
  /// Calls `work(worker, i)` once for each i < count. A worker that is done takes the next i, as
  /// some take much longer than others. Returns when all are done. `work` must not throw.
  template <typename F>
  void run_each(std::size_t count, F work) {
    if (threads_.empty() || count < 2) {
      for (std::size_t i = 0; i < count; ++i) work(0, i);
      return;
    }
    std::atomic<std::size_t> next = 0;
    run([&](int worker) {
      for (std::size_t i = next++; i < count; i = next++) work(worker, i);
    });
  }

 private:
  void serve(int worker);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(int)>* work_ = nullptr;
  std::uint64_t round_ = 0;
  int busy_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace agpcs
