// SPDX-License-Identifier: Apache-2.0
// Flows: bytes in transit over links, and the rates at which links carry several flows at the same
// time.
#pragma once

#include "ir/cluster/cluster.h"

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// One crossing of a link behind a device's ports, by a hop to or from the device.
struct LinkShare {
  DeviceId device = 0;
  LinkId link = 0;
};

/// Bytes that move at one rate over one hop, or in lockstep over several, like the hops of a ring.
struct Flow {
  std::int64_t bytes = 0;           ///< on each hop
  std::vector<LinkId> links;        ///< the hops' routes; a link appears as often as hops cross it
  std::vector<DeviceId> senders;    ///< one for each hop
  std::vector<DeviceId> receivers;  ///< one for each hop
  /// The crossings of devices that have less of the network while they compute (`note_shares`).
  std::vector<LinkShare> shares = {};
  double stretch = 1;    ///< the flow takes as long as this many times its bytes would
  double lone_rate = 0;  ///< the flow's rate by `fair_rates` without other flows; 0: not known
};

/// Returns the rate (bytes/s on each hop) of every flow when `flows` share `links` max-min fairly:
/// no flow can become faster without slowing down one that is not faster than it. Method:
/// progressive filling (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2). All rates
/// grow equally until a link is full; the flows of that link keep their rate, the others continue
/// to grow. A flow that crosses a link k times takes k times its rate there; a flow without links
/// is infinitely fast. Cost: O(hops + links x bottlenecks).
std::vector<double> fair_rates(std::span<const Flow> flows, std::span<const Link> links);

/// Returns the rate of a flow that has all links to itself; infinite if it crosses none. Cost:
/// O(links).
double lone_rate(const Flow& flow, std::span<const Link> links);

/// Computes `fair_rates` for many calls on the same links, without allocation. Not for concurrent
/// use.
class FairSharing {
 public:
  explicit FairSharing(std::span<const Link> links);
  /// Writes the rates of `flows`, in order, to `rates`.
  void share(std::span<const Flow* const> flows, std::vector<double>& rates);

 private:
  void load(std::span<const Flow* const> flows);
  std::size_t tightest() const;
  void freeze(const Flow& flow, double rate);

  std::vector<double> bandwidth_;
  std::vector<double> left_;       // by link: bandwidth that is not taken yet
  std::vector<int> crossings_;     // by link: crossings of flows whose rate still grows
  std::vector<std::size_t> used_;  // links that at least one flow crosses
};

}  // namespace agpcs
