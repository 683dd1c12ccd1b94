// SPDX-License-Identifier: Apache-2.0
// A Transport moves bytes between ranks. Three exist and pass one conformance suite: loopback
// (ranks as threads), Gloo (CPU processes) and NCCL (GPUs).
#pragma once

#include <agpcs/buffer.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// The queues of a transport. Operations of one stream start in the order in which they were
/// enqueued; different streams run concurrently.
enum class Stream : std::uint8_t { kSend, kRecv, kCollective };

/// Names an enqueued operation within its stream. Each operation's ticket is one higher than the
/// last.
using Ticket = std::uint64_t;

/// When an operation had its turn and when it was done, in nanoseconds of
/// std::chrono::steady_clock. An operation has its turn once it is enqueued and the one before it
/// in its stream is done.
struct OperationTime {
  std::int64_t begin = 0, end = 0;
};

/// A rank's connection to the other ranks.
/// Threads: the calls for one stream (enqueues and waits) come from one thread at a time. Several
/// threads may drive different streams at once. Any thread may call `abort`.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Opens the group that collectives of `group` (0 to 65,535) run over. All ranks in `ranks` call
  /// it; the call may block up to the transport's connect limit. All members open their groups in
  /// the same order, while no operation among them is under way. `ranks` is ascending and contains
  /// this rank; `host_of_rank` gives the host of every rank of the transport.
  virtual Status open_group(int group, const std::vector<int>& ranks,
                            const std::vector<int>& host_of_rank) = 0;

  /// Opens flow `flow` (0 to 65,535) for `all_reduce_flow`: it runs `schedule` among the ranks of
  /// `group`, which must be open. All members of the group call it, under the rules of
  /// `open_group`, with the same schedule (its name and stage may differ). Errors: what
  /// `verify_flow` finds.
  virtual Status open_flow(int flow, int group, const PlanFlow& schedule) = 0;

  /// Closes those groups from `first` to before `end` that are open, and their flows, to free what
  /// they hold (NCCL's communicators take GPU memory). All members call it under the rules of
  /// `open_group`, and in the same order among their calls of `open_group`. No operation may be
  /// under way. The numbers of closed groups are not used again.
  virtual Status close_groups(int /*first*/, int /*end*/) { return {}; }

  /// `send` and `recv` enqueue a transfer and never block. The caller leaves the buffer alone until
  /// it has waited for the ticket. `tag` (below 2^62) tells messages apart; messages of one
  /// (sender, receiver, tag) arrive in order. Sender and receiver both enqueue the transfer, with
  /// the same number of bytes.
  virtual Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) = 0;
  virtual Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) = 0;
  /// Enqueues an in-place sum over the group of fp64, fp32, fp16, bf16, int64 or int32 elements.
  /// All members end with the same bytes. All members of a group enqueue the same sequence of
  /// collectives.
  virtual Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) = 0;
  /// Does the same with buffers of one type, each of whole elements, as if they lay one behind the
  /// other. All members give as many elements in each. `areas` must stay where it is until the
  /// ticket is done. By default, each is a collective of its own.
  virtual Result<Ticket> all_reduce_areas(const std::vector<Buffer>& areas, int group,
                                          AllReduce algorithm) {
    Result<Ticket> last = Status(StatusCode::kInvalidInput, "all_reduce_areas: there are none");
    for (const Buffer& area : areas) {
      last = all_reduce(area, group, algorithm);
      if (!last.ok()) break;
    }
    return last;
  }
  /// Returns whether an all-reduce of areas by a ring is one collective, however many they are.
  virtual bool joins_areas() const { return false; }
  /// Does the same along an open flow; it counts as a collective of the flow's group.
  virtual Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) = 0;

  /// Enqueues an in-place reduce-scatter. The buffer's elements are cut into a part for each rank
  /// of the group, in the order of the group's ranks: `parts[i]` elements (0 or more; their sum is
  /// the buffer's) belong to the i-th rank. Afterwards this rank's part holds the sum over the
  /// group, of the types that `all_reduce` takes; what its other parts hold is unspecified. `parts`
  /// must stay where it is until the ticket is done. `algorithm` is one of `kAllReduces`. It counts
  /// as a collective of the group; all members give the same parts.
  virtual Result<Ticket> reduce_scatter(const Buffer& buffer,
                                        const std::vector<std::int64_t>& parts, int group,
                                        AllReduce algorithm) = 0;
  /// Enqueues an in-place all-gather of elements of any type: each rank's part goes to all others.
  /// The rules are those of `reduce_scatter`.
  virtual Result<Ticket> all_gather(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                                    int group, AllReduce algorithm) = 0;

  /// Enqueues an exchange of elements of any type between each two ranks of the group. The buffer's
  /// elements are cut into two parts for each rank, in the order of the group's ranks: first the
  /// `parts[i]` elements that go to the i-th of n ranks, then the `parts[n + i]` elements that come
  /// from it. Of this rank itself both are 0. Two ranks give the same number for what goes from one
  /// to the other; otherwise the rules are those of `reduce_scatter`.
  virtual Result<Ticket> all_to_all(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                                    int group) = 0;

  /// Waits until `ticket` and all operations before it in `stream` are done, for at most `limit`.
  /// Only this call waits. kTimeout names the operation and the peer; kPeerFailed names the rank
  /// that went away or failed. After either error the transport is unusable: `abort` it. After
  /// `abort`, a wait returns soon (wait for ticket 0 if there is no other), and from then on the
  /// transport touches no buffer of that stream.
  virtual Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) = 0;
  /// Makes an accelerator's compute stream wait for `ticket` and all operations before it in
  /// `stream`, so that work given to the compute stream from now on comes after them. The caller
  /// waits, for at most `limit`, only until these operations are on their way. Call `wait` as well:
  /// it reports how they ended, and must come before their buffers change hands on the host. By
  /// default, and for buffers in the host's memory, this is `wait`.
  virtual Status order_after(Stream stream, Ticket ticket, std::chrono::milliseconds limit) {
    return wait(stream, ticket, limit);
  }
  /// Returns when an operation ran. It must be done, waited for, and among the last `kTimesKept` of
  /// its stream. Only the stream's thread may call it.
  virtual OperationTime time_of(Stream stream, Ticket ticket) const = 0;
  static constexpr std::size_t kTimesKept = 4096;

  /// Makes every pending and future operation on this rank fail soon with `reason`, and informs all
  /// other ranks that it can reach. Any thread may call it; only the first call counts.
  virtual void abort(const Status& reason) = 0;
};

}  // namespace agpcs
