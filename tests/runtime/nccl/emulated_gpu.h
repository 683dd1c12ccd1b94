// SPDX-License-Identifier: Apache-2.0
// The part of CUDA and NCCL that the NCCL transport calls, carried out by CPU threads of one
// process, so that the transport's own logic is tested where there is no GPU. Linked in their
// place.
//
// As strict as the originals where that finds mistakes: what NCCL moves must be GPU memory, a send
// ends only with its receive, an operation of a peer that aborted never ends, new communicators and
// their first operations are "in progress" until asked about. A capture is broken off by questions
// about its streams, and does not end with a stream that has not joined; an operation that is part
// of a graph meets only such ones.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

/// Whether all of it is memory of one allocation of an emulated GPU.
bool on_gpu(const void* data, std::size_t bytes);

/// What NCCL says its version is, from now on.
void set_nccl_version(int version);

/// NCCL's communicators that are open.
int open_communicators();

/// Whether the calling thread carries out a graph.
bool in_graph();
/// Graphs launched so far.
int launched_graphs();

// What streams were given while they were captured: a branch for each, the first one's first.
struct CUgraph_st {
  struct Node {
    std::function<void()> work;  // null: waits until the first `nodes` of `branch` are done
    std::size_t branch = 0, nodes = 0;
  };
  std::mutex mutex;
  std::vector<std::vector<Node>> branches;
  std::vector<std::size_t> joined;  // by branch: nodes that the first one has waited for
  bool broken = false, over = false;
};

// What a stream or an event has to do with a capture.
struct InCapture {
  std::shared_ptr<CUgraph_st> graph;  // null: nothing
  std::size_t branch = 0, nodes = 0;
};

struct CUgraphExec_st {
  std::shared_ptr<const CUgraph_st> graph;
};

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
    if (const InCapture here = captured(); here.graph && work) {
      const std::lock_guard held(here.graph->mutex);
      here.graph->branches[here.branch].push_back({std::move(work), 0, 0});
      return;
    }
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty();
  }
  /// Where its work goes to; leaves a capture that is over.
  InCapture captured() {
    const std::lock_guard lock(mutex);
    const std::shared_ptr<CUgraph_st> graph = capture.graph;
    if (!graph) return {};
    const std::lock_guard held(graph->mutex);
    if (!graph->over) return {graph, capture.branch, graph->branches[capture.branch].size()};
    capture = {};
    return {};
  }
  void capture_into(std::shared_ptr<CUgraph_st> graph, std::size_t branch) {
    const std::lock_guard lock(mutex);
    capture = {std::move(graph), branch, 0};
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
  InCapture capture;
  std::thread thread;
};

// One record of an event. Who waits for an event waits for the record that it had when it was asked
// to, as in CUDA: an event that is used again meanwhile is another matter.
class Moment {
 public:
  using Clock = std::chrono::steady_clock;
  void happen() {
    const std::lock_guard lock(mutex_);
    when_ = Clock::now();
    changed_.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return when_.has_value(); });
  }
  std::optional<Clock::time_point> when() {
    const std::lock_guard lock(mutex_);
    return when_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Clock::time_point> when_;
};

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<Moment> last;  // null: never recorded, or in a capture
  InCapture capture;             // its last record was captured
};
