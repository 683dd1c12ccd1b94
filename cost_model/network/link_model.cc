// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/link_model.h"

#include "cost_model/network/protocols.h"
#include "cost_model/network/tree_phase.h"
#include "ir/base/check.h"

#include <agpcs/plan.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

namespace agpcs {
namespace {

/// Returns the latency of the hop.
double add_hop(const Cluster& cluster, DeviceId from, DeviceId to, Flow& flow) {
  const std::size_t before = flow.links.size();
  cluster.append_route(from, to, flow.links);
  flow.senders.push_back(from);
  flow.receivers.push_back(to);
  double latency = 0;
  for (std::size_t i = before; i < flow.links.size(); ++i) {
    latency += cluster.links[static_cast<std::size_t>(flow.links[i])].latency;
  }
  return latency;
}

const CollectiveFit& fit_of(const Cluster& cluster, AllReduce algorithm) {
  return cluster.collectives[static_cast<std::size_t>(algorithm)];
}

/// Returns the bytes that each of `n` devices of a ring sends.
std::int64_t bytes_on_ring(std::int64_t n, std::int64_t bytes) {
  return (2 * (n - 1) * bytes + n - 1) / n;
}

/// Returns the phase of `halves` halves of a ring, in which each device sends `bytes`.
Phase ring_phase(const Cluster& cluster, const std::vector<DeviceId>& devices,
                 const CollectiveFit& fit, int halves, std::int64_t bytes) {
  const auto n = static_cast<std::int64_t>(devices.size());
  Phase phase;
  phase.steps = halves * (n - 1);
  Flow flow;
  flow.stretch = fit.stretch;
  flow.bytes = bytes;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceId next = devices[(i + 1) % devices.size()];
    phase.latency = std::max(phase.latency, add_hop(cluster, devices[i], next, flow));
  }
  phase.latency = (phase.latency + fit.step_overhead) * static_cast<double>(phase.steps);
  note_shares(cluster, flow);
  phase.flows.push_back(std::move(flow));
  if (const Flow& all = phase.flows.front(); have_protocols(cluster, all.links)) {
    ProtocolChoice choice(cluster);
    choice.add(all, ring_latency(hops_of(cluster, all), halves), phase.steps, fit.step_overhead);
    choice.settle(phase);
  }
  return phase;
}

Phase ring(const Cluster& cluster, const std::vector<DeviceId>& devices, const CollectiveFit& fit,
           std::int64_t bytes) {
  const auto n = static_cast<std::int64_t>(devices.size());
  return ring_phase(cluster, devices, fit, 2, bytes_on_ring(n, bytes));
}

/// Groups the devices by host, hosts and devices in order of appearance.
std::vector<std::vector<DeviceId>> by_host(const Cluster& cluster,
                                           const std::vector<DeviceId>& devices) {
  std::vector<std::vector<DeviceId>> groups;
  std::vector<int> group_of(cluster.hosts.size(), -1);
  for (const DeviceId device : devices) {
    const int host = cluster.devices[static_cast<std::size_t>(device)].host;
    int& group = group_of[static_cast<std::size_t>(host)];
    if (group < 0) {
      group = static_cast<int>(groups.size());
      groups.emplace_back();
    }
    groups[static_cast<std::size_t>(group)].push_back(device);
  }
  return groups;
}

enum class Direction : std::uint8_t { kToFirst, kFromFirst };

/// Chooses the protocol of a phase whose flows are chains of hops, if all its links have protocols.
void choose_protocol(const Cluster& cluster, const CollectiveFit& fit, Phase& phase) {
  const auto known = [&](const Flow& flow) { return have_protocols(cluster, flow.links); };
  if (!std::all_of(phase.flows.begin(), phase.flows.end(), known)) return;
  ProtocolChoice choice(cluster);
  for (const Flow& flow : phase.flows) {
    choice.add(flow, chain_latency(hops_of(cluster, flow)),
               static_cast<std::int64_t>(flow.senders.size()), fit.step_overhead);
  }
  choice.settle(phase);
}

/// Returns the phase in which the bytes cross every hop of every host's chain once: a reduce to its
/// first device, or a broadcast from it.
Phase chains(const Cluster& cluster, const std::vector<std::vector<DeviceId>>& hosts,
             const CollectiveFit& fit, Direction direction, std::int64_t bytes) {
  Phase phase;
  for (const std::vector<DeviceId>& chain : hosts) {
    if (chain.size() < 2) continue;
    Flow flow;
    flow.bytes = bytes;
    flow.stretch = fit.stretch;
    const auto steps = static_cast<std::int64_t>(chain.size()) - 1;
    double latency = fit.step_overhead * static_cast<double>(steps);
    for (std::size_t i = 1; i < chain.size(); ++i) {
      const bool up = direction == Direction::kToFirst;
      const DeviceId from = up ? chain[i] : chain[i - 1];
      const DeviceId to = up ? chain[i - 1] : chain[i];
      latency += add_hop(cluster, from, to, flow);
    }
    phase.latency = std::max(phase.latency, latency);
    phase.steps = std::max(phase.steps, steps);
    note_shares(cluster, flow);
    phase.flows.push_back(std::move(flow));
  }
  choose_protocol(cluster, fit, phase);
  return phase;
}

Exchange hierarchical(const Cluster& cluster, const std::vector<DeviceId>& devices,
                      std::int64_t bytes) {
  const std::vector<std::vector<DeviceId>> hosts = by_host(cluster, devices);
  std::vector<DeviceId> firsts;
  firsts.reserve(hosts.size());
  for (const std::vector<DeviceId>& host : hosts) firsts.push_back(host.front());
  Exchange exchange;
  const CollectiveFit& fit = fit_of(cluster, AllReduce::kHierarchical);
  const bool inside = hosts.size() < devices.size();
  if (inside) exchange.push_back(chains(cluster, hosts, fit, Direction::kToFirst, bytes));
  if (firsts.size() > 1) exchange.push_back(ring(cluster, firsts, fit, bytes));
  if (inside) exchange.push_back(chains(cluster, hosts, fit, Direction::kFromFirst, bytes));
  return exchange;
}

/// Returns the phase in which the first of each group of devices sends each other one its part
/// (kFromFirst), or gets it. `part_of`: bytes by device.
template <typename PartOf>
Phase star(const Cluster& cluster, const std::vector<std::vector<DeviceId>>& groups,
           const CollectiveFit& fit, Direction direction, PartOf part_of) {
  Phase phase;
  for (const std::vector<DeviceId>& group : groups) {
    for (std::size_t i = 1; i < group.size(); ++i) {
      const bool up = direction == Direction::kToFirst;
      const DeviceId from = up ? group[i] : group[0], to = up ? group[0] : group[i];
      Flow flow;
      flow.bytes = part_of(group[i]);
      flow.stretch = fit.stretch;
      phase.latency = std::max(phase.latency, add_hop(cluster, from, to, flow) + fit.step_overhead);
      note_shares(cluster, flow);
      phase.flows.push_back(std::move(flow));
    }
  }
  phase.steps = 1;
  choose_protocol(cluster, fit, phase);
  return phase;
}

/// Returns the phases of a reduce-scatter (kToFirst) in their order, those of an all-gather
/// backwards.
Exchange half(const Cluster& cluster, const std::vector<DeviceId>& devices, AllReduce algorithm,
              std::span<const std::int64_t> parts, Direction direction) {
  AGPCS_CHECK(algorithm != AllReduce::kFlow, "a half of a flow of {} devices", devices.size());
  AGPCS_CHECK(parts.size() == devices.size(), "{} parts for {} devices", parts.size(),
              devices.size());
  const std::int64_t all = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (devices.size() < 2 || all == 0) return {};
  const auto half_ring = [&](const std::vector<DeviceId>& members, const CollectiveFit& fit,
                             std::span<const std::int64_t> owned) {
    return ring_phase(cluster, members, fit, 1,
                      all - *std::min_element(owned.begin(), owned.end()));
  };
  const CollectiveFit& fit = fit_of(cluster, algorithm);
  if (algorithm == AllReduce::kRing) return {half_ring(devices, fit, parts)};
  const Direction back =
      direction == Direction::kToFirst ? Direction::kFromFirst : Direction::kToFirst;
  const auto part_of = [&](DeviceId device) {
    return parts[static_cast<std::size_t>(std::find(devices.begin(), devices.end(), device) -
                                          devices.begin())];
  };
  if (algorithm == AllReduce::kTree) {
    TreeHalf tree = tree_half(cluster, devices, fit, direction == Direction::kToFirst, all);
    std::vector<DeviceId> from_root = {devices[tree.root]};
    std::copy_if(devices.begin(), devices.end(), std::back_inserter(from_root),
                 [&](DeviceId device) { return device != from_root[0]; });
    return {std::move(tree.phase), star(cluster, {from_root}, fit, back, part_of)};
  }
  const std::vector<std::vector<DeviceId>> hosts = by_host(cluster, devices);
  std::vector<DeviceId> firsts;
  std::vector<std::int64_t> of_hosts;
  for (const std::vector<DeviceId>& host : hosts) {
    firsts.push_back(host.front());
    of_hosts.push_back(0);
    for (const DeviceId device : host) of_hosts.back() += part_of(device);
  }
  Exchange exchange;
  const bool inside = hosts.size() < devices.size();
  if (inside) exchange.push_back(chains(cluster, hosts, fit, direction, all));
  if (firsts.size() > 1) exchange.push_back(half_ring(firsts, fit, of_hosts));
  if (inside) exchange.push_back(star(cluster, hosts, fit, back, part_of));
  return exchange;
}

double seconds_at(double rate, const Flow& flow) {
  return flow.stretch * static_cast<double>(flow.bytes) / rate;
}

/// Returns whether no two of `flows` cross the same link.
bool are_apart(const Cluster& cluster, const std::vector<const Flow*>& flows) {
  std::vector<const Flow*> crosses(cluster.links.size());  // by link
  for (const Flow* const flow : flows) {
    for (const LinkId id : flow->links) {
      const Flow*& other = crosses[static_cast<std::size_t>(id)];
      if (other != nullptr && other != flow) return false;
      other = flow;
    }
  }
  return true;
}

/// Returns the seconds until the first `own` of `flows` are done; rates change whenever one ends,
/// unless no two share a link.
double seconds_of_first(const Cluster& cluster, std::vector<const Flow*> flows, std::size_t own) {
  std::vector<double> left, rates;
  for (const Flow* const flow : flows) {
    left.push_back(flow->stretch * static_cast<double>(flow->bytes));
  }
  std::optional<FairSharing> sharing;
  if (are_apart(cluster, flows)) {
    for (const Flow* const flow : flows) rates.push_back(lone_rate(*flow, cluster.links));
  } else {
    sharing.emplace(cluster.links);
  }
  double seconds = 0;
  while (own > 0) {
    if (sharing) sharing->share(flows, rates);
    double next = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < flows.size(); ++i) next = std::min(next, left[i] / rates[i]);
    seconds += next;
    for (std::size_t i = flows.size(); i-- > 0;) {
      const bool ends = left[i] / rates[i] <= next;
      left[i] -= rates[i] * next;
      if (!ends) continue;
      flows.erase(flows.begin() + static_cast<std::ptrdiff_t>(i));
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
      rates.erase(rates.begin() + static_cast<std::ptrdiff_t>(i));
      if (i < own) --own;
    }
  }
  return seconds;
}

/// Returns the seconds until all of `all` are done.
double seconds_of(const Cluster& cluster, const std::vector<Flow>& all) {
  if (all.size() == 1) return seconds_at(lone_rate(all.front(), cluster.links), all.front());
  std::vector<const Flow*> flows;
  for (const Flow& flow : all) flows.push_back(&flow);
  return seconds_of_first(cluster, std::move(flows), all.size());
}

/// Returns the seconds of a phase of one flow for each number of bytes; `set` sets them.
template <typename F>
std::vector<double> seconds_by_bytes(const Cluster& cluster, const Phase& phase,
                                     std::span<const std::int64_t> bytes, F set) {
  const Flow& flow = phase.flows.front();
  const double rate = lone_rate(flow, cluster.links);
  std::vector<double> seconds;
  for (const std::int64_t some : bytes) {
    set(some);
    seconds.push_back(phase.latency + seconds_at(rate, flow));
  }
  return seconds;
}

/// Sets the bytes that `hierarchical` sums among devices on `hosts` hosts.
void set_bytes(Exchange& exchange, std::int64_t hosts, std::int64_t bytes) {
  const std::size_t ring = exchange.size() == 1 ? 0 : 1;  // where there are several hosts
  for (std::size_t i = 0; i < exchange.size(); ++i) {
    for (Flow& flow : exchange[i].flows) {
      flow.bytes = hosts > 1 && i == ring ? bytes_on_ring(hosts, bytes) : bytes;
    }
  }
}

}  // namespace

double route_latency(const Cluster& cluster, DeviceId from, DeviceId to) {
  double latency = 0;
  for (const LinkId id : cluster.route(from, to)) {
    latency += cluster.links[static_cast<std::size_t>(id)].latency;
  }
  return latency;
}

void note_shares(const Cluster& cluster, Flow& flow) {
  const auto throttled = [&](DeviceId id) {
    return cluster.kind_of(id).overlap.communication_factor != 1;
  };
  for (std::size_t hop = 0; hop < flow.senders.size(); ++hop) {
    const DeviceId from = flow.senders[hop], to = flow.receivers[hop];
    if (!throttled(from) && !throttled(to)) continue;
    const std::vector<LinkId> route = cluster.route(from, to);
    for (std::size_t i = 1; i + 1 < route.size(); ++i) {  // the ends are the ports
      if (throttled(from)) flow.shares.push_back({from, route[i]});
      if (throttled(to)) flow.shares.push_back({to, route[i]});
    }
  }
}

Exchange transfer(const Cluster& cluster, DeviceId from, DeviceId to, std::int64_t bytes) {
  Flow flow;
  flow.bytes = bytes;
  const double latency = add_hop(cluster, from, to, flow);
  note_shares(cluster, flow);
  return {Phase{latency, {std::move(flow)}, 0}};
}

Exchange all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    AllReduce algorithm, std::int64_t bytes) {
  AGPCS_CHECK(algorithm != AllReduce::kFlow, "a flow of {} bytes without its schedule", bytes);
  if (devices.size() < 2) return {};
  if (algorithm == AllReduce::kHierarchical) return hierarchical(cluster, devices, bytes);
  const CollectiveFit& fit = fit_of(cluster, algorithm);
  if (algorithm == AllReduce::kTree) return {tree_phase(cluster, devices, fit, bytes)};
  return {ring(cluster, devices, fit, bytes)};
}

Exchange reduce_scatter(const Cluster& cluster, const std::vector<DeviceId>& devices,
                        AllReduce algorithm, std::span<const std::int64_t> parts) {
  return half(cluster, devices, algorithm, parts, Direction::kToFirst);
}

Exchange all_gather(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    AllReduce algorithm, std::span<const std::int64_t> parts) {
  Exchange exchange = half(cluster, devices, algorithm, parts, Direction::kFromFirst);
  std::reverse(exchange.begin(), exchange.end());
  return exchange;
}

std::vector<double> lone_all_reduce_seconds(const Cluster& cluster,
                                            const std::vector<DeviceId>& devices,
                                            AllReduce algorithm,
                                            std::span<const std::int64_t> bytes) {
  AGPCS_CHECK(algorithm != AllReduce::kFlow, "a flow without its schedule");
  if (devices.size() < 2) return std::vector<double>(bytes.size());
  if (!cluster.protocols.empty()) {  // latency and stretch depend on the bytes
    std::vector<double> seconds;
    for (const std::int64_t some : bytes) {
      seconds.push_back(lone_seconds(cluster, all_reduce(cluster, devices, algorithm, some)));
    }
    return seconds;
  }
  const CollectiveFit& fit = fit_of(cluster, algorithm);
  if (algorithm == AllReduce::kTree) {
    TreeShape shape = tree_shape(cluster, devices, fit);
    return seconds_by_bytes(cluster, shape.phase, bytes,
                            [&](std::int64_t some) { set_tree_bytes(shape, fit, some); });
  }
  if (algorithm == AllReduce::kRing) {
    Phase phase = ring(cluster, devices, fit, 0);
    const auto n = static_cast<std::int64_t>(devices.size());
    return seconds_by_bytes(cluster, phase, bytes, [&](std::int64_t some) {
      phase.flows.front().bytes = bytes_on_ring(n, some);
    });
  }
  Exchange exchange = hierarchical(cluster, devices, 0);
  const auto hosts = static_cast<std::int64_t>(by_host(cluster, devices).size());
  std::vector<double> seconds;
  for (const std::int64_t some : bytes) {
    set_bytes(exchange, hosts, some);
    seconds.push_back(lone_seconds(cluster, exchange));
  }
  return seconds;
}

Exchange small_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes) {
  if (devices.size() < 2) return {};
  if (Phase phase = ring(cluster, devices, fit_of(cluster, AllReduce::kRing), bytes);
      have_protocols(cluster, phase.flows.front().links)) {
    const CollectiveFit& fit = fit_of(cluster, AllReduce::kTree);
    Exchange tree = {tree_phase(cluster, devices, fit, bytes)};
    Exchange around = {std::move(phase)};
    return lone_seconds(cluster, tree) < lone_seconds(cluster, around) ? tree : around;
  }
  Phase phase;
  Flow flow;
  flow.bytes = bytes;
  double longest = 0;
  for (std::size_t i = 1; i < devices.size(); ++i) {
    const DeviceId parent = devices[i & (i - 1)];  // the index without its lowest set bit
    longest = std::max(longest, add_hop(cluster, devices[i], parent, flow));
    longest = std::max(longest, add_hop(cluster, parent, devices[i], flow));
  }
  phase.steps = 2 * std::bit_width(devices.size() - 1);
  phase.latency = (longest + fit_of(cluster, AllReduce::kRing).step_overhead) *
                  static_cast<double>(phase.steps);
  note_shares(cluster, flow);
  phase.flows.push_back(std::move(flow));
  return {std::move(phase)};
}

Exchange report_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t statistics_every) {
  const auto ranks = static_cast<std::int64_t>(devices.size());
  return small_all_reduce(cluster, devices, mean_report_bytes(ranks, statistics_every));
}

Exchange norm_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  return small_all_reduce(cluster, devices, sizeof(double));
}

double latency_of(const Exchange& exchange) {
  double latency = 0;
  for (const Phase& phase : exchange) latency += phase.latency;
  return latency;
}

double lone_seconds(const Cluster& cluster, const Exchange& exchange) {
  double seconds = 0;
  for (const Phase& phase : exchange) {
    seconds += phase.latency + seconds_of(cluster, phase.flows);
  }
  return seconds;
}

double least_seconds(const Cluster& cluster, const Exchange& exchange) {
  double seconds = 0;
  for (const Phase& phase : exchange) {
    double slowest = 0;
    for (const Flow& flow : phase.flows) {
      if (flow.links.empty()) continue;
      const double rate = flow.lone_rate > 0 ? flow.lone_rate : lone_rate(flow, cluster.links);
      slowest = std::max(slowest, flow.stretch * static_cast<double>(flow.bytes) / rate);
    }
    seconds += phase.latency + slowest;
  }
  return seconds;
}

double seconds_beside(const Cluster& cluster, const Exchange& exchange,
                      std::span<const Exchange* const> others) {
  if (others.empty()) return lone_seconds(cluster, exchange);
  double seconds = 0;
  for (std::size_t p = 0; p < exchange.size(); ++p) {
    std::vector<const Flow*> flows;
    for (const Flow& flow : exchange[p].flows) flows.push_back(&flow);
    for (const Exchange* const other : others) {
      if (p >= other->size()) continue;
      for (const Flow& flow : (*other)[p].flows) flows.push_back(&flow);
    }
    seconds +=
        exchange[p].latency + seconds_of_first(cluster, std::move(flows), exchange[p].flows.size());
  }
  return seconds;
}

}  // namespace agpcs
