// SPDX-License-Identifier: Apache-2.0
// NcclLane: one stream of the NCCL transport. It has a CUDA stream and a thread; only this
// thread calls NCCL for the stream, so that callers never block in NCCL and its communicators
// need no lock.
//
// CUDA gives notice of the end of an operation (cudaLaunchHostFunc), so nobody polls for it.
// Failures bring no notice. Therefore, while something is under way, the thread asks NCCL, CUDA and
// the bootstrap twice a second whether it can still end.
#pragma once

#include "runtime/nccl/graph.h"
#include "runtime/nccl/links.h"
#include "runtime/nccl/meeting.h"
#include "runtime/nccl/staging.h"
#include "runtime/support/operation_times.h"

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
  /// Makes a lane for GPU `device`, on which `compute` works. When the lane has failed, its thread
  /// calls `on_failure` before it leaves its communicators.
  NcclLane(NcclMeeting& meeting, int device, cudaStream_t compute,
           std::function<void(const Status&)> on_failure);
  /// Lets finished operations leave the rank; aborts all if one is not finished.
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  using Task = std::function<Status(NcclLinks&, const NcclPause&)>;
  /// Runs `task`, called `what` in messages, on the lane's thread. Only one task runs at a time;
  /// call `finish` after each.
  void begin(std::string what, Task task);
  /// Waits for the task. The lane fails if the task fails or is not done within `limit`.
  Status finish(std::chrono::milliseconds limit);

  Result<Ticket> enqueue(const NcclOperation& operation);
  Status wait(Ticket ticket, std::chrono::milliseconds limit);
  /// Does what `Transport::order_after` describes.
  Status order_after(Ticket ticket, std::chrono::milliseconds limit);
  /// Returns when an operation ran: its end is when CUDA's notice came, its duration is that of
  /// CUDA's events.
  OperationTime time_of(Ticket ticket) const;

  /// Starts recording. Until `end_recording`, operations become part of the graph that the compute
  /// stream captures, and count as done. Needs: nothing is under way.
  Status begin_recording();
  /// Ends recording, and makes the compute stream wait for all recorded operations.
  Result<NcclRecording> end_recording(std::chrono::milliseconds limit);
  /// Watches over a replay of `recording` until `notice`; `wait` waits for it. Recording and graph
  /// must outlive the replay.
  Result<Ticket> begin_replay(const NcclRecording& recording);
  /// Brings CUDA's notice that an operation, or a replay, has ended.
  void notice();

  /// Fails all operations that are under way, and all later ones, with `reason`; the first failure
  /// counts. Waits end once no operation touches a buffer any more.
  void fail(const Status& reason);
  /// Begins to leave; `await_end` (or the destructor) waits until it has left.
  void stop();
  void await_end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    NcclOperation operation;
    // After the work that the compute stream had; null: nothing to wait for.
    cudaEvent_t computed = nullptr;
    cudaEvent_t begun = nullptr, ended = nullptr;  // on the lane's stream; null: nothing to move
    StagingBlock staging;
    const NcclRecording* replayed = nullptr;  // set for a replay of these operations

    std::string text() const;
    std::vector<int> peers() const;  // ranks that are needed
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
  /// Returns the nanoseconds between the events of a finished job.
  static std::int64_t duration_of(const Job& job);
  bool staged(Ticket ticket) const;
  Status timed_out(std::chrono::milliseconds limit) const;
  /// Waits a moment and watches over what is being started. For the lane's thread.
  Status pause();
  /// Returns why operations with `peers` that are under way cannot end, or Ok.
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

  // Only the lane's thread uses these.
  NcclLinks links_;
  NcclStaging staging_;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> timed_events_;  // free events
  std::span<const int> awaited_;           // ranks that the operation being started needs
  Clock::time_point inspected_{};
  int leaving_ = -1;  // the rank that the last look found gone; -1: none
  NcclPause pause_ = [this] { return pause(); };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first `launched_` are under way
  std::size_t launched_ = 0;
  std::size_t notices_ = 0;             // ends of which CUDA gave notice
  bool ordering_ = false;               // a caller is using the events of jobs
  std::atomic<bool> recording_{false};  // written with the lock
  NcclRecording recorded_;              // the recording so far
  Ticket enqueued_ = 0, done_ = 0;
  OperationTimes times_;
  std::string task_name_;
  Task task_;  // null: no task, or it is done
  Status task_status_;
  std::vector<cudaEvent_t> events_;  // free events
  Status failure_;
  bool stopping_ = false, drained_ = false;
  std::thread thread_;  // last: it uses all others
};

}  // namespace agpcs
