// SPDX-License-Identifier: Apache-2.0
// Flows: bytes on their way over links, and the rates at which links carry them at the same time.
#pragma once

#include "ir/cluster.h"

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// A crossing of a link behind a device's ports, by a hop to or from the device.
struct LinkShare {
  DeviceId device = 0;
  LinkId link = 0;
};

/// Bytes that move at one rate over one hop, or in lockstep over several, as the hops of a ring do.
struct Flow {
  std::int64_t bytes = 0;           ///< on each hop
  std::vector<LinkId> links;        ///< the hops' routes; a link as often as hops cross it
  std::vector<DeviceId> senders;    ///< one a hop
  std::vector<DeviceId> receivers;  ///< one a hop
  /// Those of devices that have less of the network while they compute (`note_shares`).
  std::vector<LinkShare> shares = {};
  double stretch = 1;    ///< it takes as long as that many times its bytes would
  double lone_rate = 0;  ///< of `fair_rates` with no other flow; 0: not known
};

/// The rate (bytes/s on each hop) of every flow when `flows` share `links` max-min fairly: no flow
/// can be faster without making one slower that is no faster than it. Progressive filling
/// (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2): all rates grow alike until a
/// link is full, whose flows then keep their rate, and so on. A flow that crosses a link k times
/// takes k times its rate there; one without links is infinitely fast.
/// Cost: O(hops + links x bottlenecks).
std::vector<double> fair_rates(std::span<const Flow> flows, std::span<const Link> links);

/// `fair_rates` for many calls on the same links, without allocation. Not for concurrent use.
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
  std::vector<int> crossings_;     // by link: of flows whose rate still grows
  std::vector<std::size_t> used_;  // links that some flow crosses, ascending
};

}  // namespace agpcs
