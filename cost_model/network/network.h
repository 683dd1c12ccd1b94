// SPDX-License-Identifier: Apache-2.0
// Network: flows in progress in virtual time, sharing links max-min fairly.
#pragma once

#include "cost_model/network/flow.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {

/// The end of a flow if nothing else changes. It is void once `Network::is_current` returns false.
struct FlowEnd {
  double time = 0;
  int slot = 0;
  int version = 0;
};

/// The flows in progress. Between calls of `start`, `finish` and `settle`, the caller does not go
/// back in time.
class Network {
 public:
  explicit Network(std::span<const Link> links);

  /// Restores the state after construction; watched devices stay watched.
  void clear();

  /// Puts a flow on its links; `finish` returns `owner` when it ends. Needs: the flow has bytes and
  /// links; `flow` outlives its run.
  void start(const Flow& flow, int owner, double now) { start(flow, flow.bytes, owner, now); }
  /// Does the same with another number of bytes than the flow's.
  void start(const Flow& flow, std::int64_t bytes, int owner, double now);
  /// Takes a flow off its links at its end, and returns its owner.
  int finish(const FlowEnd& end);
  bool is_current(const FlowEnd& end) const;

  /// Gives the link `factor` of its bandwidth, from the next `settle` on.
  void scale(LinkId link, double factor);

  /// Gives `device`, from the next `settle` on, `factor` of what its flows cross behind its ports
  /// (`Flow::shares`): of each such link, all its flows together have at most that part.
  void scale_shares(DeviceId device, double factor);

  /// Keeps account of the bytes that flow to and from a device. Needs: no flow has started.
  void watch(DeviceId device);
  bool watches() const { return !devices_.empty(); }
  /// Returns the bytes/s that a watched device sends and receives.
  double rate_of(DeviceId device) const;
  /// Moves the watched devices whose rate may have changed since the last call to `devices`.
  void take_touched(std::vector<DeviceId>& devices);

  /// Shares bandwidth anew after the starts and finishes since the last call, among the flows that
  /// they affect over common links, and appends the ends that moved to `ends`. Cost: that of
  /// `fair_rates` for those flows alone.
  void settle(double now, std::vector<FlowEnd>& ends);

 private:
  struct Active {
    const Flow* flow = nullptr;
    const LinkId *first_link = nullptr, *last_link = nullptr;  // the flow's links, then its shares
    std::vector<LinkId> with_shares;  // these links, if the flow has shares
    std::span<const LinkId> links() const { return {first_link, last_link}; }
    int owner = 0;
    double left = 0;   // bytes, at `since`
    double since = 0;  // seconds
    double rate = 0;   // bytes/s since `since`
    int version = 0;   // version of its end
    bool reached = false;
  };
  struct OnLink {
    std::vector<int> slots;  // once for each crossing
    double bandwidth = 0;    // scaled
    double full_bandwidth = 0;
    double left = 0;       // while sharing: bandwidth that is not taken yet
    int growing = 0;       // while sharing: crossings of flows whose rate still grows
    bool reached = false;  // the link is in changed_
  };
  struct Watched {
    bool watched = false;
    bool touched = false;    // the device is in touched_
    std::vector<int> slots;  // once for each end of a hop
  };
  /// The parts of links that a device may have. A part is a link of its own, numbered above the
  /// links given.
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
  double find_full();
  void share_reached(double now, std::vector<FlowEnd>& ends);
  template <typename F>
  void for_each_watched(const Flow& flow, F f);
  void touch(const Flow& flow);

  OnLink& on(LinkId link) { return links_[static_cast<std::size_t>(link)]; }
  const OnLink& on(LinkId link) const { return links_[static_cast<std::size_t>(link)]; }

  std::vector<OnLink> links_;  // the links given, then the parts
  std::size_t given_ = 0, used_ = 0;
  std::vector<Shares> shares_;  // by device, up to the last whose flows have shares
  bool scaled_ = false;         // at least one link is scaled
  std::vector<Active> slots_;
  std::vector<int> free_slots_;
  std::vector<int> started_;      // slots, since the last settle
  std::vector<LinkId> changed_;   // links where flows met others since the last settle
  std::vector<LinkId> full_;      // while sharing: links that are full first
  std::vector<Watched> devices_;  // empty: no device is watched
  std::vector<DeviceId> touched_;
};

}  // namespace agpcs
