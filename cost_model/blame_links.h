// SPDX-License-Identifier: Apache-2.0
// Which links changed, from what messages between devices took before and take now.
#pragma once

#include "cost_model/drifted_cluster.h"
#include "ir/cluster.h"

#include <map>
#include <vector>

namespace agpcs {

/// What messages from one device to another take, in times of what they took when `cluster` was as
/// it says.
struct RouteDrift {
  DeviceId from = 0, to = 0;
  double seconds_per_byte = 1;
  double latency = 1;
};

/// A route whose bytes take up to so many times as long, or as short, has not changed; the same for
/// latencies, which are noisier.
inline constexpr double kSameRate = 1.5, kSameLatency = 2;

/// The links that explain `routes`, with their factors.
///
/// A byte takes what the slowest link of its route does; latencies add up. What may have changed: a
/// device's two ports, all ports of a host, a host's NIC, a cable in both directions, or any one
/// link. Routes that got faster first: every link that is too slow for them is as fast as they are,
/// for nothing slower can be on their way. Then, again and again, the one change that makes the
/// most routes take what they take, less those that it makes take longer than they do (by more than
/// kSameRate), is made, until none helps; a tie goes to the smaller change: the narrow link, not
/// the wide ones beside it; then to fewer links, then to the first. Its factor is the median of
/// those that its routes ask for. Latencies likewise.
/// Routes that nobody measured neither accuse nor excuse a link.
/// Cost: O(changes x measured routes of each resource squared).
std::map<LinkId, LinkFactor> blame_links(const Cluster& cluster,
                                         const std::vector<RouteDrift>& routes);

}  // namespace agpcs
