// SPDX-License-Identifier: Apache-2.0
// Collectives over a wire. All transports on CPUs share this implementation, and hence give the
// same bytes.
#pragma once

#include "runtime/support/rank_group.h"
#include "runtime/transport/awaited_peer.h"
#include "runtime/transport/ring_walk.h"
#include "runtime/transport/wire.h"

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace agpcs {

/// What `WireCollectives` is asked for.
struct WireCollective {
  Collective kind = Collective::kAllReduce;
  AllReduce algorithm = AllReduce::kRing;  ///< one of `kAllReduces`
  Buffer buffer;                           ///< with `areas`: their bytes and type
  const Parts* parts = nullptr;            ///< null for an all-reduce
  /// Of an all-reduce by a ring: where the buffer's bytes lie, in order. Null: in `buffer`.
  const std::vector<Buffer>* areas = nullptr;
};

/// Returns the wire's slot for flows of group `group`.
std::uint64_t flow_slot(int group);

/// Runs collectives of one rank, one at a time, on the calling thread.
class WireCollectives {
 public:
  WireCollectives(Wire& wire, int rank);

  /// Does `call` over the members of `group`, as `Transport` describes it. Blocks until it is done
  /// or the wire fails; the caller sees to limits. Needs: `check_collective` accepts it.
  Status run(const RankGroup& group, const WireCollective& call);

  /// Returns the rank that the running collective is waiting for; -1 if it waits for no rank. Any
  /// thread may call it.
  int waiting_for() const { return awaited_.rank(); }

 private:
  Status ring(const RankGroup& group, const std::vector<int>& ranks, const WireCollective& call,
              std::uint64_t slot);
  Status go_round(const Ring& ring, DType type, int previous, int next, std::uint64_t slot);
  Status hierarchical(const RankGroup& group, const WireCollective& call, std::uint64_t slot);
  Status all_to_all(const RankGroup& group, std::uint64_t slot);
  Status tree(const RankGroup& group, const WireCollective& call, std::uint64_t slot);
  Status climb(const RankGroup& group, const WireCollective& call, std::uint64_t slot);
  /// Sums the buffers of `ranks` on the first of them.
  Status sum_on_first(const std::vector<int>& ranks, const Buffer& buffer, std::uint64_t slot);
  /// Sends the others' parts to the first of `ranks`.
  Status gather_on_first(const RankGroup& group, const std::vector<int>& ranks, std::uint64_t slot);
  /// Sends the others what they are to end with from the first of `ranks`: the buffer, or their
  /// parts.
  Status hand_out(const RankGroup& group, const std::vector<int>& ranks, const WireCollective& call,
                  std::uint64_t slot);
  void find_parts(const WireCollective& call);
  void find_areas(const WireCollective& call);
  void find_chunks(const RankGroup& group, const std::vector<int>& ranks,
                   const WireCollective& call);

  /// Posts `span` to, or from, `peer` in segments; `finish` waits for them.
  Status post_sends(Span span, int peer, std::uint64_t slot);
  Status post_recvs(Span span, int peer, std::uint64_t slot);
  /// Posts `from` to `peer` as one message, or none if it is empty.
  Status post_send(const Pieces& from, int peer, std::uint64_t slot);
  Status finish();
  /// Adds what comes from `peer` in segments to `span`, and waits for it.
  Status add_all(Span span, DType type, int peer, std::uint64_t slot);

  struct Posted {
    std::unique_ptr<WireMessage> message;
    int peer = 0;
  };
  Wire& wire_;
  int rank_;
  AwaitedPeer awaited_;
  // All are kept from one collective to the next for their memory.
  std::vector<Area> areas_;  // of the ring; before the messages, which refer to them
  std::vector<Posted> posted_;
  std::vector<char> scratch_;
  std::vector<Span> parts_;          // in the order of `Parts`; none in an all-reduce
  std::vector<std::size_t> chunks_;  // of the ring: Ring::bounds
};

}  // namespace agpcs
