// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/network.h"

#include "ir/base/check.h"

#include <algorithm>
#include <limits>

namespace agpcs {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

}  // namespace

Network::Network(std::span<const Link> links) : given_(links.size()), used_(links.size()) {
  links_.reserve(links.size());
  for (const Link& link : links) links_.push_back({{}, link.bandwidth, link.bandwidth});
}

void Network::clear() {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    Active& active = slots_[slot];
    if (active.flow != nullptr) {
      for (const LinkId link : active.links()) on(link).slots.clear();
    }
    active.flow = nullptr;
    active.version = 0;
    active.reached = false;
  }
  free_slots_.clear();
  for (std::size_t slot = slots_.size(); slot-- > 0;) free_slots_.push_back(static_cast<int>(slot));
  for (const LinkId link : changed_) on(link).reached = false;
  changed_.clear();
  started_.clear();
  used_ = given_;  // parts are numbered anew, because ties must not depend on earlier runs
  for (Shares& shares : shares_) {
    shares.factor = 1;
    shares.parts.clear();
  }
  for (std::size_t i = 0; scaled_ && i < given_; ++i) {
    links_[i].bandwidth = links_[i].full_bandwidth;
  }
  scaled_ = false;
  for (Watched& device : devices_) {
    device.slots.clear();
    device.touched = false;
  }
  touched_.clear();
}

void Network::start(const Flow& flow, std::int64_t bytes, int owner, double now) {
  AGPCS_CHECK(bytes > 0 && !flow.links.empty(), "flow of {} bytes over {} links", bytes,
              flow.links.size());
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<int>(slots_.size()));
    slots_.emplace_back();
  }
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  Active& active = slots_[static_cast<std::size_t>(slot)];
  active.flow = &flow;
  put_on_links(active, flow);
  active.owner = owner;
  active.left = flow.stretch * static_cast<double>(bytes);
  active.since = now;
  active.rate = 0;
  for (const LinkId link : active.links()) on(link).slots.push_back(slot);
  for_each_watched(flow, [&](DeviceId, Watched& device) { device.slots.push_back(slot); });
  started_.push_back(slot);
}

/// Returns the link that stands for a device's part of a link.
LinkId Network::part_of(const LinkShare& share) {
  const auto device = static_cast<std::size_t>(share.device);
  if (shares_.size() <= device) shares_.resize(device + 1);
  Shares& shares = shares_[device];
  for (const auto& [link, part] : shares.parts) {
    if (link == share.link) return part;
  }
  if (used_ == links_.size()) links_.emplace_back();
  const auto part = static_cast<LinkId>(used_++);
  on(part).full_bandwidth = on(share.link).full_bandwidth;
  on(part).bandwidth = shares.factor == 1 ? kUnbounded : shares.factor * on(part).full_bandwidth;
  shares.parts.emplace_back(share.link, part);
  return part;
}

void Network::put_on_links(Active& active, const Flow& flow) {
  const std::vector<LinkId>* links = &flow.links;
  if (!flow.shares.empty()) {
    active.with_shares = flow.links;
    for (const LinkShare& share : flow.shares) active.with_shares.push_back(part_of(share));
    links = &active.with_shares;
  }
  active.first_link = links->data();
  active.last_link = links->data() + links->size();
}

bool Network::is_current(const FlowEnd& end) const {
  return slots_[static_cast<std::size_t>(end.slot)].version == end.version;
}

int Network::finish(const FlowEnd& end) {
  AGPCS_CHECK(is_current(end), "flow end of slot {} is void", end.slot);
  Active& active = slots_[static_cast<std::size_t>(end.slot)];
  for (const LinkId link : active.links()) {
    std::vector<int>& slots = on(link).slots;
    slots.erase(std::find(slots.begin(), slots.end(), end.slot));
    if (!slots.empty()) reach(link);
  }
  for_each_watched(*active.flow, [&](DeviceId, Watched& device) {
    device.slots.erase(std::find(device.slots.begin(), device.slots.end(), end.slot));
  });
  touch(*active.flow);
  ++active.version;
  active.flow = nullptr;
  free_slots_.push_back(end.slot);
  return active.owner;
}

void Network::scale(LinkId link, double factor) {
  on(link).bandwidth = on(link).full_bandwidth * factor;
  scaled_ = true;
  if (!on(link).slots.empty()) reach(link);
}

void Network::scale_shares(DeviceId device, double factor) {
  const auto index = static_cast<std::size_t>(device);
  if (shares_.size() <= index) shares_.resize(index + 1);
  shares_[index].factor = factor;
  scaled_ = true;
  for (const auto& [link, part] : shares_[index].parts) {
    on(part).bandwidth = factor == 1 ? kUnbounded : factor * on(part).full_bandwidth;
    if (!on(part).slots.empty()) reach(part);
  }
}

void Network::watch(DeviceId device) {
  const auto index = static_cast<std::size_t>(device);
  if (devices_.size() <= index) devices_.resize(index + 1);
  devices_[index].watched = true;
}

double Network::rate_of(DeviceId device) const {
  double rate = 0;
  for (const int slot : devices_[static_cast<std::size_t>(device)].slots) {
    const Active& active = slots_[static_cast<std::size_t>(slot)];
    rate += active.rate / active.flow->stretch;
  }
  return rate;
}

/// Calls `f(id, device)` for the watched devices of a flow, once for each of its hops' ends.
template <typename F>
void Network::for_each_watched(const Flow& flow, F f) {
  if (devices_.empty()) return;
  for (const std::vector<DeviceId>* ends : {&flow.senders, &flow.receivers}) {
    for (const DeviceId id : *ends) {
      const auto index = static_cast<std::size_t>(id);
      if (index < devices_.size() && devices_[index].watched) f(id, devices_[index]);
    }
  }
}

void Network::touch(const Flow& flow) {
  for_each_watched(flow, [&](DeviceId id, Watched& device) {
    if (!device.touched) touched_.push_back(id);
    device.touched = true;
  });
}

void Network::take_touched(std::vector<DeviceId>& devices) {
  devices.swap(touched_);
  touched_.clear();
  for (const DeviceId id : devices) devices_[static_cast<std::size_t>(id)].touched = false;
}

void Network::reach(LinkId link) {
  OnLink& state = on(link);
  if (!state.reached) changed_.push_back(link);
  state.reached = true;
}

void Network::reach_links_of(const Active& active) {
  for (const LinkId link : active.links()) reach(link);
}

/// Goes from the changed links to the flows on them, to all links of those flows, and so on.
void Network::collect_reached() {
  for (std::size_t i = 0; i < changed_.size(); ++i) {  // changed_ grows while it is walked
    OnLink& link = on(changed_[i]);
    link.left = link.bandwidth;
    link.growing = static_cast<int>(link.slots.size());
    for (const int slot : link.slots) {
      Active& active = slots_[static_cast<std::size_t>(slot)];
      if (active.reached) continue;
      active.reached = true;
      reach_links_of(active);
    }
  }
}

/// Writes the reached links whose flows can grow least to full_, and returns by how much. It drops
/// links that no growing flow crosses.
double Network::find_full() {
  std::size_t kept = 0;
  double least = kUnbounded;
  full_.clear();
  for (const LinkId id : changed_) {
    OnLink& link = on(id);
    if (link.growing == 0) {
      link.reached = false;
      continue;
    }
    changed_[kept++] = id;
    const double share = link.left / link.growing;
    if (share > least) continue;
    if (share < least) full_.clear();
    least = share;
    full_.push_back(id);
  }
  changed_.resize(kept);
  return least;
}

/// Shares the reached links by progressive filling, as FairSharing does. Links that are full at the
/// same time are so in one round, so that rates do not depend on the numbers of links.
void Network::share_reached(double now, std::vector<FlowEnd>& ends) {
  for (double rate = find_full(); !full_.empty(); rate = find_full()) {
    for (const LinkId full : full_) {
      for (const int slot : on(full).slots) {
        Active& active = slots_[static_cast<std::size_t>(slot)];
        if (!active.reached) continue;  // its rate is already known
        active.reached = false;
        for (const LinkId link : active.links()) {
          on(link).left -= rate;
          --on(link).growing;
        }
        give(slot, rate, now, ends);
      }
    }
  }
}

/// Returns true when no other flow crosses the flow's links. The crossings of one flow are
/// neighbours in a link's list.
bool Network::is_alone(int slot) const {
  const std::span<const LinkId> links = slots_[static_cast<std::size_t>(slot)].links();
  return std::all_of(links.begin(), links.end(), [&](LinkId link) {
    const std::vector<int>& slots = on(link).slots;
    return slots.front() == slot && slots.back() == slot;
  });
}

double Network::lone_rate(int slot) const {
  const Active& active = slots_[static_cast<std::size_t>(slot)];
  if (active.flow->lone_rate > 0 && !scaled_) return active.flow->lone_rate;
  double least = kUnbounded;
  for (const LinkId id : active.links()) {  // the flow is alone, so all crossings are its own
    least = std::min(least, on(id).bandwidth / static_cast<int>(on(id).slots.size()));
  }
  return least;
}

/// Sets the rate of the flow in `slot` from now on.
void Network::give(int slot, double rate, double now, std::vector<FlowEnd>& ends) {
  Active& active = slots_[static_cast<std::size_t>(slot)];
  if (rate == active.rate) return;
  active.left = std::max(0.0, active.left - active.rate * (now - active.since));
  active.since = now;
  active.rate = rate;
  touch(*active.flow);
  ends.push_back({now + active.left / active.rate, slot, ++active.version});
}

void Network::settle(double now, std::vector<FlowEnd>& ends) {
  for (const int slot : started_) {
    if (is_alone(slot)) {
      give(slot, lone_rate(slot), now, ends);
    } else {
      reach_links_of(slots_[static_cast<std::size_t>(slot)]);
    }
  }
  started_.clear();
  if (changed_.empty()) return;
  collect_reached();
  share_reached(now, ends);
}

}  // namespace agpcs
