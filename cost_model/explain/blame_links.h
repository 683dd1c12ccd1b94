// SPDX-License-Identifier: Apache-2.0
// Finds which links changed, by comparing what messages between devices took before and take now.
#pragma once

#include "cost_model/explain/drifted_cluster.h"
#include "ir/cluster/cluster.h"

#include <map>
#include <vector>

namespace agpcs {

/// What messages from one device to another take, as a multiple of what they took when the hardware
/// was as `cluster` says.
struct RouteDrift {
  DeviceId from = 0, to = 0;
  double seconds_per_byte = 1;
  double latency = 1;
};

/// A route has changed only if its bytes take more than kSameRate times as long as before, or as
/// short. kSameLatency is the same limit for latencies, which are noisier.
inline constexpr double kSameRate = 1.5, kSameLatency = 2;

/// Returns the links that explain `routes`, with their factors.
///
/// The model: a byte takes as long as on the slowest link of its route; latencies add up. A change
/// may concern a device's two ports, all ports of a host, a host's NIC, a cable in both directions,
/// or any one link. Routes that nobody measured count neither for nor against a link.
///
/// 1. For each route that became faster, every link that is too slow for it is set to the route's
///    speed, because no link of the route can be slower.
/// 2. While a change helps, the best one is made. Its score is the number of routes that then take
///    what was measured, less the number that no longer do (by more than kSameRate). Ties go to the
///    smaller factor (so the narrow link is chosen, not the wide ones beside it), then to fewer
///    links, then to the first. The factor is the median of those that the explained routes need.
///
/// Latencies are explained in the same way, without step 1. Cost: O(changes x measured routes of
/// each resource squared).
std::map<LinkId, LinkFactor> blame_links(const Cluster& cluster,
                                         const std::vector<RouteDrift>& routes);

}  // namespace agpcs
