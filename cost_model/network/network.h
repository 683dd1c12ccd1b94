// SPDX-License-Identifier: Apache-2.0
// Network: flows in progress in virtual time, sharing links max-min fairly.
#pragma once

#include "cost_model/flow.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {

/// When a flow ends if nothing else changes; void once `Network::is_current` says no.
struct FlowEnd {
  double time = 0;
  int slot = 0;
  int version = 0;
};

/// Between `start`, `finish` and `settle` calls the caller does not go back in time.
class Network {
 public:
  explicit Network(std::span<const Link> links);

  /// As it was made; watched devices stay watched.
  void clear();

  /// Puts a flow on its links; `owner` is given back when it ends. Needs: bytes and links; `flow`
  /// outlives its run.
  void start(const Flow& flow, int owner, double now) { start(flow, flow.bytes, owner, now); }
  /// The same with other bytes than the flow's.
  void start(const Flow& flow, std::int64_t bytes, int owner, double now);
  /// Takes a flow off its links at its end, and returns its owner.
  int finish(const FlowEnd& end);
  bool is_current(const FlowEnd& end) const;

  /// From the next `settle` on, the link has `factor` of its bandwidth.
  void scale(LinkId link, double factor);

  /// From the next `settle` on, `device` has `factor` of what its flows cross behind its ports
  /// (`Flow::shares`): of each such link, all its flows together have at most that part.
  void scale_shares(DeviceId device, double factor);

  /// Keeps an account of the bytes that flow to and from a device. Before any flow starts.
  void watch(DeviceId device);
  bool watches() const { return !devices_.empty(); }
  /// Bytes/s sent and received by a watched device.
  double rate_of(DeviceId device) const;
  /// Puts the watched devices whose rate may have changed since the last call into `devices`.
  void take_touched(std::vector<DeviceId>& devices);

  /// Shares bandwidth anew among the flows that starts and finishes since the last call reach over
  /// common links, and appends the ends that moved to `ends`. Cost: that of `fair_rates` for those
  /// flows alone.
  void settle(double now, std::vector<FlowEnd>& ends);

 private:
  struct Active {
    const Flow* flow = nullptr;
    const LinkId *first_link = nullptr, *last_link = nullptr;  // of the flow, then its shares
    std::vector<LinkId> with_shares;                           // they, if it has any
    std::span<const LinkId> links() const { return {first_link, last_link}; }
    int owner = 0;
    double left = 0;   // bytes, at `since`
    double since = 0;  // seconds
    double rate = 0;   // bytes/s since then
    int version = 0;   // of its end
    bool reached = false;
  };
  struct OnLink {
    std::vector<int> slots;  // once a crossing
    double bandwidth = 0;    // scaled
    double full_bandwidth = 0;
    double left = 0;       // while sharing: bandwidth that is not taken yet
    int growing = 0;       // while sharing: crossings of flows whose rate still grows
    bool reached = false;  // it is in changed_
  };
  struct Watched {
    bool watched = false;
    bool touched = false;    // it is in touched_
    std::vector<int> slots;  // once a hop end
  };
  /// Parts of links that a device may have: links of their own, above those that are given.
  struct Shares {
    double factor = 1;
    std::vector<std::pair<LinkId, LinkId>> parts;  // a link, and the device's part of it
  };
  LinkId part_of(const LinkShare& share);
  void put_on_links(Active& active, const Flow& flow);
  bool is_alone(int slot) const;
  double lone_rate(int slot) const;
  void give(int slot, double rate, double now, std::vector<FlowEnd>& ends);
  void reach(LinkId link);
  void reach_links_of(const Active& active);
  void collect_reached();
  LinkId tightest();
  void share_reached(double now, std::vector<FlowEnd>& ends);
  template <typename F>
  void for_each_watched(const Flow& flow, F f);
  void touch(const Flow& flow);

  OnLink& on(LinkId link) { return links_[static_cast<std::size_t>(link)]; }
  const OnLink& on(LinkId link) const { return links_[static_cast<std::size_t>(link)]; }

  std::vector<OnLink> links_;  // first those that are given, then parts
  std::size_t given_ = 0, used_ = 0;
  std::vector<Shares> shares_;  // by device, as far as some flow has any
  bool scaled_ = false;         // some link is
  std::vector<Active> slots_;
  std::vector<int> free_slots_;
  std::vector<int> started_;      // slots, since the last settle
  std::vector<LinkId> changed_;   // links where flows met others since the last settle
  std::vector<Watched> devices_;  // empty: none is watched
  std::vector<DeviceId> touched_;
};

}  // namespace agpcs
