// SPDX-License-Identifier: Apache-2.0
// Transport: moves bytes between ranks. Loopback (ranks as threads), Gloo (CPU processes) and NCCL
// (GPUs) pass one conformance suite.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// In-order queues of a transport. Operations of one stream start in the order enqueued; streams
/// run concurrently.
enum class Stream : std::uint8_t { kSend, kRecv, kCollective };

/// Names an enqueued operation of one stream; grows by one with each.
using Ticket = std::uint64_t;

/// When an operation had its turn (it was enqueued, and the one before it in its stream was done)
/// and when it was done; nanoseconds of std::chrono::steady_clock.
struct OperationTime {
  std::int64_t begin = 0, end = 0;
};

/// A step that was recorded with the compute stream's work, to be replayed by one launch (a CUDA
/// graph). Goes before its transport, and before the memory that it reads and writes. One thread.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  /// Starts a replay; does not wait for it. Needs: the one before has been waited for, nothing else
  /// of the transport is under way, and all ranks of the recorded operations launch theirs.
  virtual Status launch() = 0;
  /// As `Transport::wait`, for the whole replay. kTimeout names what has not ended.
  virtual Status wait(std::chrono::milliseconds limit) = 0;
  /// Of a recorded operation in the last replay, which was waited for.
  virtual OperationTime time_of(Stream stream, Ticket ticket) const = 0;
};

/// Threads: calls for one stream (its enqueues and its waits) come from one thread at a time;
/// different streams may be driven by different threads at once. `abort` may come from any.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Opens the group that collectives of `group` (0 to 65,535) run over. Collective over `ranks`
  /// (ascending, contains this rank; `host_of_rank` has the host of every rank of the transport);
  /// may block up to the transport's connect limit. All members open their groups in one order,
  /// while nothing of them is under way.
  virtual Status open_group(int group, const std::vector<int>& ranks,
                            const std::vector<int>& host_of_rank) = 0;

  /// Opens flow `flow` (0 to 65,535): `schedule` among the ranks of `group`, which is open, for
  /// `all_reduce_flow`. All members of the group call it, with the same schedule; its name and
  /// stage do not count. As with groups. Errors: what `verify_flow` finds.
  virtual Status open_flow(int flow, int group, const PlanFlow& schedule) = 0;

  /// Closes the groups from `first` to before `end` that are open, with their flows, for what they
  /// hold (NCCL's communicators take GPU memory). All members call it, in one order with what they
  /// open; nothing is under way, and no recorded step has them. As with groups. Their numbers are
  /// not given again.
  virtual Status close_groups(int /*first*/, int /*end*/) { return {}; }

  /// Enqueue; never block. The buffer stays untouched until the ticket is waited for. Messages of
  /// one (sender, receiver, tag) arrive in order; `tag` (below 2^62) tells others apart. Both ends
  /// give the same number of bytes; a transfer needs both ends.
  virtual Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) = 0;
  virtual Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) = 0;
  /// In-place sum over the group: fp64, fp32, fp16, bf16, int64 or int32. All members end with the
  /// same bytes. All members enqueue the same sequence of collectives per group.
  virtual Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) = 0;
  /// The same along an open flow, over its group, as one of that group's collectives.
  virtual Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) = 0;

  /// The only place that waits: until `ticket` and all before it in `stream` are done, at most
  /// `limit`. kTimeout names the operation and the peer; kPeerFailed the rank that went away or
  /// failed. After either the transport is of no more use: `abort` it. After `abort`, a wait (for
  /// ticket 0 if for no other) returns soon, and then no buffer of its stream is touched any more.
  virtual Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) = 0;
  /// Where buffers are made and used on an accelerator's compute stream: has that stream wait for
  /// `ticket` and all before it in `stream`, so that what it is given from now on comes after them.
  /// The caller waits only until they are on their way, at most `limit`. `wait` still tells how
  /// they ended, and comes before their buffers change hands on the host. Elsewhere (the default),
  /// and for buffers in the host's memory: `wait`.
  virtual Status order_after(Stream stream, Ticket ticket, std::chrono::milliseconds limit) {
    return wait(stream, ticket, limit);
  }
  /// Of one of the last `kTimesKept` operations of a stream that are done and waited for. The
  /// stream's thread only.
  virtual OperationTime time_of(Stream stream, Ticket ticket) const = 0;
  static constexpr std::size_t kTimesKept = 4096;

  /// Why no step can be recorded over this transport; empty: it can.
  virtual std::string recording_obstacle() const {
    return "the transport computes on no GPU of its own";
  }
  /// From here to `end_recording` what the compute stream is given, and the operations enqueued,
  /// are recorded and not carried out; `order_after` orders what is recorded. Buffers are on the
  /// GPU, and stay where they are. Needs: nothing under way; each pair and group has exchanged
  /// something before; all ranks of the operations record them, too.
  virtual Status begin_recording() { return no_recording(); }
  /// Ends it in any case. A recording that failed is an error, and the transport goes on as before,
  /// except where the operations themselves failed: then the next one says so.
  virtual Result<std::unique_ptr<StepGraph>> end_recording(std::chrono::milliseconds /*limit*/) {
    return no_recording();
  }

  /// Makes every pending and future operation on this rank fail soon with `reason`, and tells the
  /// other ranks as far as they can be reached. Any thread; the first call counts.
  virtual void abort(const Status& reason) = 0;

 private:
  Status no_recording() const { return {StatusCode::kUnavailable, recording_obstacle()}; }
};

}  // namespace agpcs
