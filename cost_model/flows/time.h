// SPDX-License-Identifier: Apache-2.0
// Computes the seconds that a flow schedule takes on links of given bandwidths and latencies.
#pragma once

#include "cost_model/flows/schedule.h"
#include "cost_model/flows/waits.h"
#include "ir/cluster/cluster.h"
#include "ir/cluster/topology.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// The costs of messages beyond their links' latencies and bandwidths (`CollectiveFit`), and the
/// order in which they move.
struct FlowOverheads {
  double message = 0;  ///< seconds between the moment when a message may leave and its departure
  double stretch = 1;  ///< how many times longer bytes take than the bandwidth says
  FlowOrder order = FlowOrder::kReceivers;
  std::vector<RoundWait> waits = {};  ///< only with `kRounds`; by round
};

/// Returns the links of a topology; a link of capacity c has c times `bandwidth` (bytes/s).
std::vector<Link> links_of(const Topology& topology, double bandwidth, double latency);

/// Returns the bytes of each message of an all-reduce of `bytes`: the bytes of a sub-chunk, rounded
/// up.
std::int64_t message_bytes(const FlowSchedule& schedule, std::int64_t bytes);

/// The most workloads of a schedule that `schedule_seconds` simulates, about a second's worth of
/// events. It times larger schedules by `lockstep_seconds`.
inline constexpr std::size_t kMostTimedWorkloads = 200'000;
bool is_timed(const FlowSchedule& schedule);  ///< the schedule is not larger

/// Returns the seconds of an all-reduce of `bytes` (> 0) that has all links to itself. `links` are
/// numbered as in the topology. Rounds are not barriers: messages move in the order of `overheads`
/// (FlowOrder). A message takes the latencies of its links, then its bytes at a rate that messages
/// share max-min fairly (cost_model/network/network.h).
/// - `kReceivers`: receivers ask ahead. A message's latency therefore passes from when its prefixes
///   have arrived, even while it still waits for its turn.
/// - `kRounds`: the latency passes from when both ends have begun the message's round. The signal
///   from one server to another that waits for it takes as long as the longest latency of a route.
/// Needs: a schedule that is valid and normalized. The time of every message is accurate to 0.1%.
/// Cost: 4 to 25 ms for 64 servers; above kMostTimedWorkloads, that of `lockstep_seconds`.
double schedule_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads = {});

/// Returns the same with a barrier after every round; barriers take no time. Each round takes the
/// longest of its routes' latencies, then as long as its fullest link. Cost: O(workloads x links of
/// a route).
double lockstep_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads = {});

}  // namespace agpcs
