// SPDX-License-Identifier: Apache-2.0
// Protocols: what the phases of a collective take on networks whose protocols of NCCL are known.
//
// A protocol has a start, a latency of each message, and a part of the links' bandwidth. A phase
// takes the least of
// - LL and LL128: start + latencies + bytes at that part of the bandwidth;
// - Simple: the same with all of the bandwidth, but no less than at the size at which NCCL goes
//   over to it from LL128.
// NCCL goes over where it expects Simple to be faster, and it expects too much of LL128. So its
// times fall at that size, by up to a fifth. Ours do not fall as bytes grow: below that size, LL128
// is priced at no more than Simple at that size.
#pragma once

#include "cost_model/network/link_model.h"
#include "ir/cluster/cluster.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// Seconds by Protocol.
using ByProtocol = std::array<double, kProtocolCount>;

/// Returns whether all of `links` have protocols, and no profile has the costs of collectives.
bool have_protocols(const Cluster& cluster, std::span<const LinkId> links);

/// The latency of a message over a hop whose links have protocols.
struct Hop {
  bool inside = false;  ///< between devices of one host
  ByProtocol latency = {};
};

/// Returns the hops of a flow, in order.
std::vector<Hop> hops_of(const Cluster& cluster, const Flow& flow);

/// These return the latency of all messages of an algorithm that follow one another, like NCCL's
/// model (src/graph/tuning.cc).
/// A piece goes around a ring once for each half of an all-reduce, less a hop: the longest, here.
ByProtocol ring_latency(std::span<const Hop> hops, int halves);
/// A piece goes along a chain.
ByProtocol chain_latency(std::span<const Hop> hops);
/// A piece goes along a chain of a host's devices, through a binary tree of the hosts, and back.
/// `hops` are those of a ring over the devices; the slowest counts for all.
struct TreeLatency {
  std::int64_t steps = 0;
  ByProtocol latency = {};
};
TreeLatency tree_latency(const Cluster& cluster, const std::vector<DeviceId>& devices,
                         std::span<const Hop> hops);

/// Chooses the protocol of a phase.
class ProtocolChoice {
 public:
  explicit ProtocolChoice(const Cluster& cluster) : cluster_(cluster) {}

  /// Adds a flow of the phase: `steps` messages with `latency` together, one after the other, each
  /// with an overhead. Needs: its links have protocols, and its stretch is set.
  void add(const Flow& flow, const ByProtocol& latency, std::int64_t steps, double overhead);
  /// Sets the phase's latency, and stretches its flows. Needs: they are those added, in order.
  void settle(Phase& phase) const;

 private:
  const Cluster& cluster_;
  std::vector<ByProtocol> stretches_;       // by flow: of the bytes' time
  ByProtocol latency_ = {}, seconds_ = {};  // of the slowest flow
  double expected_ = 1;                     // the least of all links
};

/// Returns the seconds that are added to each message of a schedule of messages (a flow) over
/// `links`: a message of NCCL is a launch of Simple.
double message_overhead(const Cluster& cluster, std::span<const LinkId> links);

}  // namespace agpcs
