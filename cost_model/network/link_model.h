// SPDX-License-Identifier: Apache-2.0
// Link model: what a transfer or a collective puts on which links, and how long it takes alone.
//
// Alpha-beta (Hockney, Parallel Computing 20(3), 1994): a message takes the latencies of the links
// on its route, then its bytes at the route's bandwidth. Collectives are their algorithm's steps on
// the real routes.
#pragma once

#include "cost_model/network/flow.h"
#include "ir/cluster/cluster.h"

#include <agpcs/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// A part of a collective. Its latency passes, then its flows run; the phase is over when all flows
/// are done.
struct Phase {
  double latency = 0;  ///< seconds
  std::vector<Flow> flows;
  std::int64_t steps = 0;  ///< number of successive messages that make up a collective's latency
};

/// A transfer or collective: phases of messages that follow one another.
using Exchange = std::vector<Phase>;

/// Returns the sum of the latencies of the links from one device to another.
double route_latency(const Cluster& cluster, DeviceId from, DeviceId to);

/// Records in `flow.shares` what the hops of `flow` cross behind the ports of their ends, for ends
/// whose kind has a `communication_factor` other than 1. Code that makes a flow for an exchange
/// calls this last.
void note_shares(const Cluster& cluster, Flow& flow);

/// Returns the exchange that moves `bytes` from one device to another.
Exchange transfer(const Cluster& cluster, DeviceId from, DeviceId to, std::int64_t bytes);

/// Returns the exchange that sums `bytes` over `devices` and leaves the sum on each of them.
/// `devices` has no duplicates; fewer than two devices need no phase.
///
/// Ring, over the devices in the order given (by device, so that each host is entered once):
/// reduce-scatter, then all-gather, 2 (n - 1) steps in lockstep. Each hop carries 2 (n - 1) / n of
/// the bytes (rounded up) at the pace of the slowest hop, and each step has the latency of the
/// longest hop. This is the least volume possible (Patarasuk and Yuan, J. Parallel Distrib. Comput.
/// 69(2), 2009; the steps as in Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl.
/// 19(1), 2005).
///
/// Hierarchical: inside each host, reduce along its devices to the first; ring between the first
/// devices; broadcast back. Inside a host the bytes are pipelined along the chain in small pieces:
/// every hop carries them once, all hops at the same time.
///
/// Tree (`ReductionTree`, ir/plan/reduction_tree.h): pieces go up to the root, summed on the way,
/// and down again at the same time, so that every edge of the tree carries the bytes once each way,
/// at the pace of the slowest link (a device's port carries them up to three times). The latency is
/// that of the longest way to the root plus that of the longest way back; the number of steps is 2
/// x the tree's depth. The first piece's way up and down counts as part of the bytes' time
/// (`Flow::stretch`); with few pieces, it is most of that time. Pipelined binary trees: Sanders,
/// Speck and Traeff, Parallel Computing 35(12), 2009, section 2.
///
/// `kFlow` has a schedule and a function of its own (`flow_all_reduce`,
/// cost_model/flows/exchange.h).
///
/// The measurements of the algorithm (`Cluster::collectives`) add an overhead to each step, and
/// stretch the time that the bytes take, but not the bytes.
///
/// Where all links have protocols of NCCL (`Link::protocols`), latencies and stretch depend on the
/// bytes: cost_model/network/protocols.h. A ring then has the latencies of its hops one after the
/// other, and a tree those of NCCL's: a chain in each host, a tree between the hosts.
Exchange all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    AllReduce algorithm, std::int64_t bytes);

/// Return the halves of that exchange for parts that may differ. `parts` has the bytes that each
/// device owns, parallel to `devices`. `reduce_scatter` sums all bytes and leaves each part on its
/// owner; `all_gather` brings each part from its owner to all. `algorithm` is not `kFlow`.
///
/// Ring: n - 1 steps. A hop carries all parts but one; all hops carry as much as the one that
/// carries most, all but the smallest part.
/// Hierarchical: inside each host, reduce along its devices to the first; half a ring between the
/// first devices, with the parts of their hosts; then each first device gives the others of its
/// host their parts. An all-gather is the same backwards.
/// Tree: up to the root, which then sends each device its part. An all-gather is the same
/// backwards.
Exchange reduce_scatter(const Cluster& cluster, const std::vector<DeviceId>& devices,
                        AllReduce algorithm, std::span<const std::int64_t> parts);
Exchange all_gather(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    AllReduce algorithm, std::span<const std::int64_t> parts);

/// Returns the exchange that sums a few bytes over `devices` along a binomial tree and back (Thakur
/// et al., short vectors). Only latency counts, and the ring's overhead of a step. On links with
/// protocols it is the all-reduce by ring or tree, the faster one.
Exchange small_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes);
/// Returns that exchange for the report of a step (`mean_report_bytes`); `devices` are those of all
/// ranks.
Exchange report_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t statistics_every);
/// Returns that exchange for the sum of the squares of gradients (Optimizer::max_norm).
Exchange norm_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices);

/// Returns the latency of all phases of an exchange.
double latency_of(const Exchange& exchange);

/// Returns the seconds of an exchange that has all links to itself. Cost: flows^2 for each phase.
double lone_seconds(const Cluster& cluster, const Exchange& exchange);

/// Returns the seconds that an exchange surely takes, whatever else is on its links: in each phase
/// those of the flow that takes longest alone. Cost: flows for each phase.
double least_seconds(const Cluster& cluster, const Exchange& exchange);

/// Returns the seconds of an exchange while others run in lockstep with it: in each of its phases,
/// its flows share links with those of the others' phases of the same number.
double seconds_beside(const Cluster& cluster, const Exchange& exchange,
                      std::span<const Exchange* const> others);

/// Returns the `lone_seconds` of `all_reduce` for several numbers of bytes, equal to the last bit.
/// It looks for the routes once.
std::vector<double> lone_all_reduce_seconds(const Cluster& cluster,
                                            const std::vector<DeviceId>& devices,
                                            AllReduce algorithm,
                                            std::span<const std::int64_t> bytes);

}  // namespace agpcs
