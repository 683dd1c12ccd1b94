// SPDX-License-Identifier: Apache-2.0
// The part of CUDA and NCCL that the NCCL transport calls, carried out by CPU threads of one
// process, so that the transport's own logic is tested where there is no GPU. Linked in their
// place.
//
// As strict as the originals where that finds mistakes: what NCCL moves must be GPU memory, a send
// ends only with its receive, an operation of a peer that aborted never ends, new communicators and
// their first operations are "in progress" until asked about.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

/// Whether all of it is memory of one allocation of an emulated GPU.
bool on_gpu(const void* data, std::size_t bytes);

// A stream is a thread with a queue.
struct CUstream_st {
  CUstream_st() : thread([this] { run(); }) {}
  ~CUstream_st() {
    push(nullptr);
    thread.join();
  }
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty();
  }
  void synchronize() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty(); });
  }

 private:
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !queue.empty(); });
      const std::function<void()> work = queue.front();
      lock.unlock();
      if (!work) return;
      work();
      lock.lock();
      queue.pop_front();
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;  // front: what runs
  std::thread thread;
};

struct CUevent_st {
  std::mutex mutex;
  std::condition_variable changed;
  int pending = 0;  // records under way
  std::chrono::steady_clock::time_point happened;
};
