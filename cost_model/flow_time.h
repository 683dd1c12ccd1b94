// SPDX-License-Identifier: Apache-2.0
// Seconds that a flow schedule takes on links of given bandwidths and latencies.
#pragma once

#include "cost_model/flow_schedule.h"
#include "cost_model/flow_waits.h"
#include "ir/cluster.h"
#include "ir/topology.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// What messages take beyond their links' latencies and bandwidths (`CollectiveFit`), and in which
/// order they move.
struct FlowOverheads {
  double message = 0;  ///< seconds from when a message may leave until it does
  double stretch = 1;  ///< bytes take that many times what the bandwidth says
  FlowOrder order = FlowOrder::kReceivers;
  std::vector<RoundWait> waits = {};  ///< with `kRounds`; by round
};

/// The links of a topology; one of capacity c has c times `bandwidth` (bytes/s).
std::vector<Link> links_of(const Topology& topology, double bandwidth, double latency);

/// Bytes of each message of an all-reduce of `bytes`: of a sub-chunk, rounded up.
std::int64_t message_bytes(const FlowSchedule& schedule, std::int64_t bytes);

/// Schedules of more workloads are timed by `lockstep_seconds`: about a second's worth of events.
inline constexpr std::size_t kMostTimedWorkloads = 200'000;
bool is_timed(const FlowSchedule& schedule);  ///< it has no more

/// Seconds of an all-reduce of `bytes` (> 0), all links its own; `links` by the topology's numbers.
/// Rounds are no barriers: messages move in the order of `overheads` (FlowOrder). One takes the
/// latencies of its links, then its bytes at a rate that messages share max-min fairly (network.h).
/// - `kReceivers`: receivers ask ahead, so that its latency passes from when its prefixes have
///   arrived, while it still waits for its turn.
/// - `kRounds`: from when both ends have begun its round. The word from one server to another that
///   waits for it takes as long as the longest latency of a route.
/// Needs: a schedule that is valid, and normalized. Every message's time is right to 0.1%.
/// Cost: 4 to 25 ms for 64 servers; above kMostTimedWorkloads it is `lockstep_seconds`.
double schedule_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads = {});

/// The same with a barrier after every round that takes no time: each takes the longest of its
/// routes' latencies, then as long as its fullest link. Cost: O(workloads x links of a route).
double lockstep_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads = {});

}  // namespace agpcs
