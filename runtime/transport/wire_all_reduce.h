// SPDX-License-Identifier: Apache-2.0
// All-reduce over a wire. All transports on CPUs share this implementation, and hence give the same
// bytes.
#pragma once

#include "runtime/support/rank_group.h"
#include "runtime/transport/awaited_peer.h"
#include "runtime/transport/wire.h"

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace agpcs {

/// A part of a buffer.
struct Span {
  char* data = nullptr;
  std::size_t bytes = 0;
};

/// Returns the wire's slot for flows of group `group`.
std::uint64_t flow_slot(int group);

/// Runs all-reduces of one rank, one at a time, on the calling thread.
class WireAllReduce {
 public:
  WireAllReduce(Wire& wire, int rank);

  /// Sums `buffer` over the members of `group`, in place, by one of `kAllReduces`; every member
  /// ends with the same bytes. Blocks until it is done or the wire fails; the caller sees to
  /// limits.
  Status all_reduce(const RankGroup& group, AllReduce algorithm, const Buffer& buffer);

  /// Returns the rank that the running all-reduce is waiting for; -1 if it waits for no rank. Any
  /// thread may call it.
  int waiting_for() const { return awaited_.rank(); }

 private:
  Status ring(const std::vector<int>& ranks, const Buffer& buffer, std::uint64_t slot);
  Status hierarchical(const RankGroup& group, const Buffer& buffer, std::uint64_t slot);
  Status tree(const RankGroup& group, const Buffer& buffer, std::uint64_t slot);
  Status gather_on_leader(const std::vector<int>& local, const Buffer& buffer, std::uint64_t slot);
  Status scatter_from_leader(const std::vector<int>& local, const Buffer& buffer,
                             std::uint64_t slot);
  /// Posts `span` to `peer` in segments; `finish_sends` waits for them.
  Status post_sends(Span span, int peer, std::uint64_t slot);
  /// Posts `span` to `peer` as one message, or none if it is empty.
  Status post_send(Span span, int peer, std::uint64_t slot);
  Status finish_sends();
  Status recv_into(Span span, int peer, std::uint64_t slot);
  /// Receives into scratch memory and adds to `span`. A segment is added while later ones arrive.
  Status recv_and_add(Span span, DType type, int peer, std::uint64_t slot);

  struct Sent {
    std::unique_ptr<WireMessage> message;
    int peer = 0;
  };
  Wire& wire_;
  int rank_;
  AwaitedPeer awaited_;
  std::vector<Sent> sent_;
  std::vector<char> scratch_;
};

}  // namespace agpcs
