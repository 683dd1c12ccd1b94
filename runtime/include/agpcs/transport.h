// SPDX-License-Identifier: Apache-2.0
// Transport: moves bytes between ranks. Loopback (ranks as threads), Gloo (CPU processes) and NCCL
// (GPUs) pass one conformance suite.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace agpcs {

/// In-order queues of a transport. Operations of one stream start in the order enqueued; streams
/// run concurrently.
enum class Stream : std::uint8_t { kSend, kRecv, kCollective };

/// Names an enqueued operation of one stream; grows by one with each.
using Ticket = std::uint64_t;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Opens the group that collectives of `group` run over. Collective over `ranks` (ascending,
  /// contains this rank); may block up to the transport's connect limit. Before the first step
  /// only.
  virtual Status open_group(int group, const std::vector<int>& ranks,
                            const std::vector<int>& host_of_rank) = 0;

  /// Enqueue; never block. The buffer stays untouched until the ticket is waited for. Messages of
  /// one (sender, receiver, tag) arrive in order; `tag` tells others apart.
  virtual Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) = 0;
  virtual Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) = 0;
  /// In-place sum over the group. All members enqueue the same sequence of collectives per group.
  virtual Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) = 0;

  /// The only place that waits: until `ticket` and all before it in `stream` are done, at most
  /// `limit`. kTimeout names the operation and the peers; kPeerFailed the rank that went away.
  virtual Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) = 0;
  /// Makes every pending and future operation on this rank fail soon with `reason`, and tells the
  /// other ranks as far as they can be reached. Any thread; idempotent.
  virtual void abort(const Status& reason) = 0;
};

}  // namespace agpcs
