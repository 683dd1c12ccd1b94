// SPDX-License-Identifier: Apache-2.0
// Seconds that a flow schedule takes on links of given bandwidths and latencies.
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/cluster.h"
#include "ir/topology.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// Which messages wait for which others, beyond their prefixes.
enum class FlowOrder : std::uint8_t {
  /// For the earlier ones (by round, reduce-scatter first, then chunk, then route) from the same
  /// sender to the same receiver.
  kPairs,
  /// For those of earlier rounds from the same sender, and those of earlier rounds to the same
  /// receiver: what is not urgent takes no bandwidth from what is. Near `lockstep_seconds` where
  /// servers' links are the narrow ones.
  kPorts,
};

/// What messages take beyond their links' latencies and bandwidths (`CollectiveFit`), and their
/// order.
struct FlowOverheads {
  double message = 0;  ///< seconds from when a message may leave until it does
  double stretch = 1;  ///< bytes take that many times what the bandwidth says
  FlowOrder order = FlowOrder::kPairs;
};

/// The links of a topology; one of capacity c has c times `bandwidth` (bytes/s).
std::vector<Link> links_of(const Topology& topology, double bandwidth, double latency);

/// Bytes of each message of an all-reduce of `bytes`: of a sub-chunk, rounded up.
std::int64_t message_bytes(const FlowSchedule& schedule, std::int64_t bytes);

/// Schedules of more workloads are timed by `lockstep_seconds`: about a second's worth of events.
inline constexpr std::size_t kMostTimedWorkloads = 200'000;

/// Seconds of an all-reduce of `bytes` (> 0), all links its own; `links` by the topology's numbers.
/// Rounds are no barriers. A message may leave when the prefixes of its workload have arrived and
/// those that it waits for by the order have left; it takes the latencies of its links, then its
/// bytes at a rate that messages share max-min fairly (network.h). While it travels, the next one
/// may leave. Needs: a schedule that is valid, and normalized. Every message's time is right to
/// 0.1%.
/// Cost: 4 to 25 ms for 64 servers; above kMostTimedWorkloads it is `lockstep_seconds`.
double schedule_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads = {});

/// The same with a barrier after every round: each takes the longest of its routes' latencies, then
/// as long as its fullest link. Cost: O(workloads x links of a route).
double lockstep_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads = {});

}  // namespace agpcs
