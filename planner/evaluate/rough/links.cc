// SPDX-License-Identifier: Apache-2.0
// The part of a rough step that loads links: with the messages of cuts, and with all-reduces.
#include "ir/base/at.h"
#include "ir/strategy/interleaved.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/hash.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace agpcs {

void RoughModel::Lanes::add(std::size_t lane, double more) {
  if (seconds[lane] == 0) busy.push_back(lane);
  seconds[lane] += more;
}

/// Returns the seconds of the busiest lane.
double RoughModel::Lanes::most() const {
  double most = 0;
  for (const std::size_t lane : busy) most = std::max(most, seconds[lane]);
  return most;
}

/// Empties the lanes and returns the seconds of the busiest. All seconds go to `into`, if given,
/// times `factor`.
double RoughModel::Lanes::empty(Lanes* into, double factor) {
  const double busiest = most();
  for (const std::size_t lane : busy) {
    const double own = std::exchange(seconds[lane], 0.0);
    if (into != nullptr) into->add(lane, own * factor);
  }
  busy.clear();
  return busiest;
}

/// Calls `f(link)` for each link of a route.
template <typename F>
void RoughModel::for_each_link(DeviceId from, DeviceId to, F f) const {
  const Cluster& cluster = problem_.cluster;
  const Device &a = cluster.devices[at(from)], &b = cluster.devices[at(to)];
  f(a.out);
  if (a.host != b.host) {
    const std::size_t hosts = cluster.hosts.size();
    for (const LinkId id : cluster.host_routes[at(a.host) * hosts + at(b.host)]) f(id);
  }
  f(b.in);
}

/// Adds what a route is loaded with.
RoughModel::Passed RoughModel::load_route(DeviceId from, DeviceId to, double bytes,
                                          Loads& loads) const {
  Passed passed;
  for_each_link(from, to, [&](LinkId id) {
    const Link& link = problem_.cluster.links[at(id)];
    const double seconds = bytes / link.bandwidth;
    passed.latency += link.latency;
    passed.seconds = std::max(passed.seconds, seconds);
    loads.push_back({at(id), seconds});
  });
  return passed;
}

/// Returns the lanes that an all-reduce around `devices` loads.
const RoughModel::Ring& RoughModel::ring_of(const std::vector<DeviceId>& devices) {
  const std::uint64_t hash = hash_of(devices);
  const auto [begin, end] = rings_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second.devices == devices) return it->second;
  }
  Ring& ring = rings_.emplace(hash, Ring{devices, {}})->second;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for_each_link(devices[i], devices[(i + 1) % devices.size()], [&](LinkId id) {
      const auto known = std::ranges::find(ring.lanes, at(id), &RingLane::lane);
      if (known != ring.lanes.end()) {
        ++known->hops;
      } else {
        ring.lanes.push_back({at(id), problem_.cluster.links[at(id)].bandwidth, 1});
      }
    });
  }
  remembered_loads_ += ring.lanes.size();
  return ring;
}

/// Loads the links with an all-reduce of `bytes` that takes `seconds` when alone.
void RoughModel::load_ring(const std::vector<DeviceId>& devices, double bytes, double seconds) {
  if (devices.size() < 2) return;
  const auto n = static_cast<double>(devices.size());
  const double on_each = 2 * (n - 1) / n * bytes;
  const Ring& ring = ring_of(devices);
  double most = 0;
  ring_seconds_.clear();
  for (const auto& [lane, bandwidth, hops] : ring.lanes) {
    const double hop = on_each / bandwidth;
    double own = 0;
    for (int i = 0; i < hops; ++i) own += hop;
    ring_seconds_.push_back(own);
    most = std::max(most, own);
  }
  const double factor = most > 0 ? seconds / most : 0;
  for (std::size_t i = 0; i < ring.lanes.size(); ++i) {
    cut_.add(ring.lanes[i].lane, ring_seconds_[i] * factor);
  }
}

/// Returns what is known of a cut between large stages without teams, or notes that it is asked
/// for.
RoughModel::KnownCut& RoughModel::known_cut(const StageSpec& senders, const StageSpec& receivers,
                                            double bytes) {
  std::uint64_t hash = mix(hash_of(senders.devices), hash_of(receivers.devices));
  hash = mix(hash, std::bit_cast<std::uint64_t>(bytes));
  const auto [begin, end] = known_cuts_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const KnownCut& known = it->second;
    if (known.bytes == bytes && known.senders == senders.devices &&
        known.receivers == receivers.devices && known.sent == senders.shares &&
        known.received == receivers.shares) {
      return it->second;
    }
  }
  KnownCut asked;
  asked.senders = senders.devices;
  asked.receivers = receivers.devices;
  asked.sent = senders.shares;
  asked.received = receivers.shares;
  asked.bytes = bytes;
  return known_cuts_.emplace(hash, std::move(asked))->second;
}

/// Loads a cut: `bytes` go from each replica to those that have the same samples, and as many
/// `back`. Returns the seconds without other cuts. What large stages load is remembered, as most
/// moves leave most of them as they are.
RoughModel::Seconds RoughModel::load_cut(const Strategy& strategy, int from, int to, double bytes,
                                         Lanes& back) {
  constexpr std::size_t kFew = 16;
  const StageSpec &senders = strategy.stages[at(from)], &receivers = strategy.stages[at(to)];
  const bool remembers = senders.devices.size() + receivers.devices.size() > kFew &&
                         !senders.has_teams() && !receivers.has_teams();
  small_cut_.back.clear();
  KnownCut& known = remembers ? known_cut(senders, receivers, bytes) : small_cut_;
  if (known.back.empty()) {
    pass_cut(senders, receivers, bytes, known);
    if (remembers) remembered_loads_ += known.forward.size() + known.back.size();
  }
  for (const auto& [lane, seconds] : known.back) back.add(lane, seconds);
  for (const auto& [lane, seconds] : known.forward) forward_.add(lane, seconds);
  const double seconds = known.seconds;
  const std::size_t sends = problem_.cluster.links.size();
  const std::size_t receives = sends + problem_.cluster.devices.size();
  const int round = round_size(strategy);
  forward_.add(sends + at(from % round), seconds);
  forward_.add(receives + at(to % round), seconds);
  back.add(sends + at(to % round), seconds);
  back.add(receives + at(from % round), seconds);
  return {seconds, (seconds + known.alone) / 2};
}

/// Finds what a cut loads.
void RoughModel::pass_cut(const StageSpec& senders, const StageSpec& receivers, double bytes,
                          KnownCut& cut) {
  const auto samples = static_cast<double>(
      std::accumulate(senders.shares.begin(), senders.shares.end(), std::int64_t{0}));
  double latency = 0, alone = 0, sent = 0, received = 0;
  std::int64_t done = 0, a_end = senders.shares.front(), b_end = receivers.shares.front();
  for (std::size_t a = 0, b = 0;;) {
    const std::int64_t end = std::min(a_end, b_end);
    const double own = bytes * static_cast<double>(end - done) / samples;
    const Passed route = load_members(senders, a, receivers, b, own, forward_loads_);
    load_members(receivers, b, senders, a, own, cut.back);
    latency = std::max(latency, route.latency);
    sent += route.seconds;
    received += route.seconds;
    alone = std::max({alone, route.latency + sent, route.latency + received});
    done = end;
    const bool a_done = a_end == end, b_done = b_end == end;
    if (a_done && ++a == senders.devices.size()) break;
    if (b_done && ++b == receivers.devices.size()) break;
    if (a_done) a_end += senders.shares[a], sent = 0;
    if (b_done) b_end += receivers.shares[b], received = 0;
  }
  for (const auto& [lane, seconds] : forward_loads_) cut_.add(lane, seconds);
  forward_loads_.clear();
  cut.alone = alone;
  cut.seconds = latency + cut_.most();
  cut.forward.clear();
  for (const std::size_t lane : cut_.busy) {
    cut.forward.push_back({lane, std::exchange(cut_.seconds[lane], 0.0)});
  }
  cut_.busy.clear();
}

}  // namespace agpcs
