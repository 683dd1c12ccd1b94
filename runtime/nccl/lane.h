// SPDX-License-Identifier: Apache-2.0
// NcclLane: one stream of the NCCL transport. A CUDA stream, and a thread that alone talks to NCCL
// about it, so that callers never block in NCCL and its communicators need no lock.
//
// The end of an operation is a notice that CUDA brings (cudaLaunchHostFunc): nobody polls for it.
// Failures bring none. While something is under way the thread therefore asks NCCL, CUDA and the
// bootstrap twice a second whether it can still end.
#pragma once

#include "runtime/nccl_graph.h"
#include "runtime/nccl_links.h"
#include "runtime/nccl_meeting.h"
#include "runtime/nccl_staging.h"
#include "runtime/operation_times.h"

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {

class NcclLane {
 public:
  /// For GPU `device`, on which `compute` works. `on_failure` is called on the lane's thread when
  /// the lane has failed, before it leaves its communicators.
  NcclLane(NcclMeeting& meeting, int device, cudaStream_t compute,
           std::function<void(const Status&)> on_failure);
  /// Lets what is done leave the rank, or, where something is not, aborts all.
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  using Task = std::function<Status(NcclLinks&, const NcclPause&)>;
  /// Runs `task`, called `what` in messages, on the lane's thread. One at a time; `finish` ends it.
  void begin(std::string what, Task task);
  /// Waits for it. When it fails or is not done within `limit`, so does the lane.
  Status finish(std::chrono::milliseconds limit);

  Result<Ticket> enqueue(const NcclOperation& operation);
  Status wait(Ticket ticket, std::chrono::milliseconds limit);
  /// As `Transport::order_after`.
  Status order_after(Ticket ticket, std::chrono::milliseconds limit);
  /// The end is when CUDA's notice of it came; how long it took, CUDA's events say.
  OperationTime time_of(Ticket ticket) const;

  /// From here to `end_recording` operations become part of the graph that the compute stream
  /// captures, and count as done. Needs: nothing under way.
  Status begin_recording();
  /// Has the compute stream wait for all of them.
  Result<NcclRecording> end_recording(std::chrono::milliseconds limit);
  /// Looks after a replay of `recording`, until `notice`; `wait` waits for it. Both outlive it.
  Result<Ticket> begin_replay(const NcclRecording& recording);
  /// CUDA's notice that an operation, or a replay, has ended.
  void notice();

  /// Fails what is under way and all that will be with `reason`; the first failure counts. Waits
  /// end once no buffer is touched any more.
  void fail(const Status& reason);
  /// Begins to leave; `await_end` (or the destructor) waits until it has.
  void stop();
  void await_end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    NcclOperation operation;
    cudaEvent_t computed = nullptr;  // the work that the compute stream had; null: none to wait for
    cudaEvent_t begun = nullptr, ended = nullptr;  // on the lane's stream; null: nothing to move
    StagingBlock staging;
    const NcclRecording* replayed = nullptr;  // no operation, but a replay of these

    std::string text() const;
    std::vector<int> peers() const;  // that what is under way needs
  };

  void run();
  Status set_up();
  void work();
  void shut_down();
  void run_task();
  void start(Job& job);
  void record(Job& job);
  Status put_on_stream(Job& job, void* data, unsigned event_flags);
  bool may_start() const;
  void retire(const Job& job);
  Result<cudaEvent_t> timed_event();
  /// Nanoseconds between the events of a job that is done.
  static std::int64_t duration_of(const Job& job);
  bool staged(Ticket ticket) const;
  Status timed_out(std::chrono::milliseconds limit) const;
  /// On the lane's thread: waits a moment, and looks after what is being started.
  Status pause();
  /// Why nothing will come of what is under way with `peers`.
  Status inspect(std::span<const int> peers);
  bool replaying() const;
  Status order_after_recorded(Ticket ticket);
  Status launch(Job& job);
  Status copy_in(Job& job);
  static Status copy_out(const Job& job, cudaStream_t stream);
  Status record_compute(cudaEvent_t& event);
  void give_up(const std::string& what, const Status& status);

  NcclMeeting& meeting_;
  const int device_;
  const cudaStream_t compute_;
  const std::function<void(const Status&)> on_failure_;

  // The lane's thread only.
  NcclLinks links_;
  NcclStaging staging_;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> timed_events_;  // unused
  std::span<const int> awaited_;           // by what is being started
  Clock::time_point inspected_{};
  int leaving_ = -1;  // the rank found gone by the last look
  NcclPause pause_ = [this] { return pause(); };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first `launched_` are under way
  std::size_t launched_ = 0;
  std::size_t notices_ = 0;             // ends that CUDA told of
  bool ordering_ = false;               // the events of jobs are being used
  std::atomic<bool> recording_{false};  // written with the lock
  NcclRecording recorded_;              // so far
  Ticket enqueued_ = 0, done_ = 0;
  OperationTimes times_;
  std::string task_name_;
  Task task_;  // null: none, or done
  Status task_status_;
  std::vector<cudaEvent_t> events_;  // unused
  Status failure_;
  bool stopping_ = false, drained_ = false;
  std::thread thread_;  // last: it uses all others
};

}  // namespace agpcs
