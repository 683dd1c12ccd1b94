// SPDX-License-Identifier: Apache-2.0
// CollectiveQueue: the collective stream of a wire transport. A thread of its own runs it, so that
// reductions go on while the caller computes.
#pragma once

#include "runtime/support/operation_times.h"
#include "runtime/support/ticket_signal.h"
#include "runtime/transport/schedule_all_reduce.h"
#include "runtime/transport/wire.h"
#include "runtime/transport/wire_collectives.h"

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {

class CollectiveQueue {
 public:
  CollectiveQueue(Wire& wire, int rank);
  /// Needs: the wire is cancelled, or nothing is under way.
  ~CollectiveQueue();

  Status open(RankGroup group);
  Status open_flow(int flow, int group, const PlanFlow& schedule);
  Result<Ticket> enqueue(const WireCollective& call, int group);
  Result<Ticket> enqueue_flow(const Buffer& buffer, int flow);
  /// Waits as `Transport::wait` does. After `fail` and the wire's `cancel`, it also waits until the
  /// thread has let go of the buffers.
  Status wait(Ticket ticket, std::chrono::milliseconds limit);
  /// Fails all operations that are queued, and all later ones, with `reason`; the first failure
  /// counts.
  void fail(const Status& reason);
  OperationTime time_of(Ticket ticket) const;

 private:
  struct Job {
    WireCollective call;
    const RankGroup* group = nullptr;
    const FlowProgram* flow = nullptr;  // used with `kFlow`
    std::int64_t enqueued = 0;
  };
  struct Flow {
    const RankGroup* group = nullptr;
    FlowProgram program;
  };
  Result<Ticket> push(const Job& job);
  Status carry_out(const Job& job);
  void run();
  std::string describe(const Job& job) const;

  const int rank_;
  WireCollectives collectives_;
  ScheduleAllReduce flow_reducer_;
  mutable std::mutex mutex_;
  std::condition_variable posted_changed_;  // wakes the queue's thread
  TicketSignal done_changed_;               // wakes waiting callers
  std::map<int, RankGroup> groups_;         // a map, because jobs point to its nodes
  std::map<int, Flow> flows_;               // a map for the same reason
  std::deque<Job> jobs_;                    // front: the running job
  Ticket enqueued_ = 0, done_ = 0;
  OperationTimes times_;
  Status failure_;
  bool running_ = false, stopping_ = false;
  std::thread worker_;
};

}  // namespace agpcs
