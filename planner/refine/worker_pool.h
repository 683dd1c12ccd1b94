// SPDX-License-Identifier: Apache-2.0
// WorkerPool: threads that wait for work, so that a batch of short tasks costs no thread starts.
#pragma once

#include <condition_variable>
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
