// SPDX-License-Identifier: Apache-2.0
// The places where samples are computed, and the prices of what places have.
#pragma once

#include "ir/cluster/cluster.h"

#include <cstddef>
#include <vector>

namespace agpcs {

/// Devices of one kind in the hosts of one group. Every sample of every operator is computed in a
/// place.
struct BoundPlace {
  int kind = 0, group = 0;
  double devices = 0;
};

/// Hosts that are bounded together: what all of them send to other groups, and receive, bytes/s.
struct BoundGroup {
  double out = 0, in = 0;
};

/// The resources are the devices of each place; then, for each group, what leaves its hosts; then,
/// for each group, what enters them.
struct BoundPlaces {
  std::vector<BoundPlace> places;
  std::vector<BoundGroup> groups;
  std::size_t resources() const { return places.size() + 2 * groups.size(); }
};

/// Returns the places of a cluster. Hosts with the same kinds and the same network are one group;
/// if that makes more than eight places, hosts with the same kinds are; and if those are too many,
/// all are. Cost: O(hosts^2).
BoundPlaces bound_places(const Cluster& cluster);

/// Prices of resources that bound a step by weak duality: all resources cost 1 for a second, so a
/// step of T seconds costs T, and pays for what it uses.
struct BoundPrices {
  std::vector<double> money;    ///< by resource: all of it for a second; sums to 1
  std::vector<double> device;   ///< by place: one device for a second
  std::vector<double> out, in;  ///< by group: a byte
};

/// Needs: `money` is not negative and sums to 1, by resource.
BoundPrices bound_prices(const BoundPlaces& places, std::vector<double> money);

}  // namespace agpcs
