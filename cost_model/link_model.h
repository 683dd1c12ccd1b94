// SPDX-License-Identifier: Apache-2.0
// Link model: what a transfer or a collective puts on which links, and what it takes when alone.
//
// Alpha-beta (Hockney, Parallel Computing 20(3), 1994): a message takes the latencies of the links
// on its route, then its bytes at the route's bandwidth. Collectives are their algorithm's steps on
// the real routes.
#pragma once

#include "cost_model/flow.h"
#include "ir/cluster.h"

#include <agpcs/types.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// A part of a collective: its latency passes, then its flows run; it is over when all are done.
struct Phase {
  double latency = 0;  ///< seconds
  std::vector<Flow> flows;
  std::int64_t steps = 0;  ///< messages one after another that a collective's latency is made of
};

/// Phases that follow one another.
using Exchange = std::vector<Phase>;

/// Sum of the latencies of the links from one device to another.
double route_latency(const Cluster& cluster, DeviceId from, DeviceId to);

/// Notes what the hops of `flow` cross behind the ports of their ends, where an end's kind has a
/// `communication_factor` other than 1. What makes a flow for an exchange calls this last.
void note_shares(const Cluster& cluster, Flow& flow);

/// `bytes` from one device to another.
Exchange transfer(const Cluster& cluster, DeviceId from, DeviceId to, std::int64_t bytes);

/// Sum of `bytes` over `devices`, left on each of them. `devices` has no duplicates; fewer than two
/// need no phase.
///
/// Ring, over the devices in the order given (by device, so that each host is entered once):
/// reduce-scatter, then all-gather, 2 (n - 1) steps in lockstep; each hop carries 2 (n - 1) / n of
/// the bytes (rounded up) at the pace of the slowest, and each step has the longest hop's latency.
/// This is the least volume possible (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009;
/// the steps as in Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19(1),
/// 2005).
///
/// Hierarchical: reduce inside each host along its devices to the first, ring between the first
/// devices, broadcast back. Inside a host the bytes are pipelined along the chain in small pieces:
/// every hop carries them once, all hops at the same time.
///
/// Tree (`ReductionTree`, ir/reduction_tree.h): pieces go up to the root, summed on the way, and
/// down again at the same time, so that every edge of the tree carries the bytes once each way, at
/// the pace of the slowest link (a device's port carries them up to three times). The latency is
/// that of the longest way to the root and that of the longest way back, the steps are 2 x the
/// tree's depth. The first piece's way up and down is part of the bytes' time (`Flow::stretch`):
/// with few pieces, most of it. Pipelined binary trees: Sanders, Speck and Traeff, Parallel
/// Computing 35(12), 2009, section 2.
///
/// `kFlow` has a schedule and a function of its own (flow_exchange.h).
///
/// What was measured of the algorithm (`Cluster::collectives`) adds its overhead to each step, and
/// stretches the time that the bytes take, not the bytes.
Exchange all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    AllReduce algorithm, std::int64_t bytes);

/// Sum of a few bytes over `devices` along a binomial tree and back: latency alone counts
/// (Thakur et al., short vectors), and the ring's overhead of a step.
Exchange small_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes);
/// The same of what a step reports (`mean_report_bytes`); `devices`: of all ranks.
Exchange report_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t statistics_every);

/// Latency of all phases of an exchange.
double latency_of(const Exchange& exchange);

/// Seconds of an exchange that has all links to itself. Cost: flows^2 a phase.
double lone_seconds(const Cluster& cluster, const Exchange& exchange);

}  // namespace agpcs
