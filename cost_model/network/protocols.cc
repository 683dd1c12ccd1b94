// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/protocols.h"

#include "ir/base/at.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

namespace agpcs {
namespace {

constexpr auto kLL128 = static_cast<std::size_t>(Protocol::kLL128);
constexpr auto kSimple = static_cast<std::size_t>(Protocol::kSimple);
constexpr double kNever = std::numeric_limits<double>::infinity();

const NetworkProtocols& protocols_of(const Cluster& cluster, LinkId id) {
  return cluster.protocols[at(cluster.links[at(id)].protocols)];
}

}  // namespace

bool have_protocols(const Cluster& cluster, std::span<const LinkId> links) {
  if (cluster.protocols.empty() || cluster.collectives_profile.given()) return false;
  return std::all_of(links.begin(), links.end(),
                     [&](LinkId id) { return cluster.links[at(id)].protocols >= 0; });
}

std::vector<Hop> hops_of(const Cluster& cluster, const Flow& flow) {
  std::vector<Hop> hops;
  std::vector<LinkId> route;
  for (std::size_t i = 0; i < flow.senders.size(); ++i) {
    const DeviceId from = flow.senders[i], to = flow.receivers[i];
    route.clear();
    cluster.append_route(from, to, route);
    Hop hop;
    hop.inside = cluster.devices[at(from)].host == cluster.devices[at(to)].host;
    for (const LinkId id : route) {
      const NetworkProtocols& protocols = protocols_of(cluster, id);
      for (std::size_t p = 0; p < hop.latency.size(); ++p) {
        hop.latency[p] += protocols.of[p].latency * cluster.links[at(id)].latency;
      }
    }
    hops.push_back(hop);
  }
  return hops;
}

ByProtocol chain_latency(std::span<const Hop> hops) {
  ByProtocol latency = {};
  for (const Hop& hop : hops) {
    for (std::size_t p = 0; p < latency.size(); ++p) latency[p] += hop.latency[p];
  }
  return latency;
}

ByProtocol ring_latency(std::span<const Hop> hops, int halves) {
  ByProtocol latency = chain_latency(hops);
  for (std::size_t p = 0; p < latency.size(); ++p) {
    double longest = 0;
    for (const Hop& hop : hops) longest = std::max(longest, hop.latency[p]);
    latency[p] = halves * (latency[p] - longest);
  }
  return latency;
}

TreeLatency tree_latency(const Cluster& cluster, const std::vector<DeviceId>& devices,
                         std::span<const Hop> hops) {
  std::map<int, std::int64_t> on_host;
  std::int64_t longest = 0;
  for (const DeviceId id : devices) {
    longest = std::max(longest, ++on_host[cluster.devices[at(id)].host]);
  }
  const std::int64_t inside = 2 * (longest - 1);
  const std::int64_t between = 2 * std::bit_width(on_host.size() - 1);
  TreeLatency tree = {inside + between, {}};
  for (std::size_t p = 0; p < tree.latency.size(); ++p) {
    double within = 0, across = 0;
    for (const Hop& hop : hops) {
      double& slowest = hop.inside ? within : across;
      slowest = std::max(slowest, hop.latency[p]);
    }
    tree.latency[p] = static_cast<double>(inside) * within + static_cast<double>(between) * across;
  }
  return tree;
}

void ProtocolChoice::add(const Flow& flow, const ByProtocol& latency, std::int64_t steps,
                         double overhead) {
  std::vector<int> crossings(cluster_.links.size());
  for (const LinkId id : flow.links) ++crossings[at(id)];
  ByProtocol start = {}, rate = {kNever, kNever, kNever};
  double step = 0;
  for (const LinkId id : flow.links) {
    const NetworkProtocols& protocols = protocols_of(cluster_, id);
    const double bandwidth = cluster_.links[at(id)].bandwidth / crossings[at(id)];
    for (std::size_t p = 0; p < rate.size(); ++p) {
      start[p] = std::max(start[p], protocols.of[p].start);
      rate[p] = std::min(rate[p], protocols.of[p].rate * bandwidth);
    }
    step = std::max(step, protocols.step);
    expected_ = std::min(expected_, protocols.expected);
  }
  const double lone = flow.stretch * static_cast<double>(flow.bytes) / rate[kSimple];
  ByProtocol stretch = {};
  for (std::size_t p = 0; p < rate.size(); ++p) {
    const double own = start[p] + latency[p] + static_cast<double>(steps) * (step + overhead);
    latency_[p] = std::max(latency_[p], own);
    stretch[p] = rate[p] > 0 ? rate[kSimple] / rate[p] : kNever;
    seconds_[p] = std::max(seconds_[p], rate[p] > 0 ? stretch[p] * lone : kNever);
  }
  stretches_.push_back(stretch);
}

void ProtocolChoice::settle(Phase& phase) const {
  double bytes = seconds_[kSimple];  // what Simple is priced at
  const bool goes_over = expected_ > 0 && expected_ < 1;
  const double lead = latency_[kSimple] - latency_[kLL128];
  if (goes_over && lead > 0) bytes = std::max(bytes, lead * expected_ / (1 - expected_));
  std::size_t best = kSimple;
  double least = latency_[kSimple] + bytes;
  for (std::size_t p = 0; p < kSimple; ++p) {
    if (latency_[p] + seconds_[p] >= least) continue;
    best = p;
    least = latency_[p] + seconds_[p];
  }
  phase.latency = best == kSimple ? least - seconds_[kSimple] : latency_[best];
  for (std::size_t f = 0; f < stretches_.size(); ++f) {
    phase.flows[f].stretch *= stretches_[f][best];
  }
}

double message_overhead(const Cluster& cluster, std::span<const LinkId> links) {
  if (links.empty() || !have_protocols(cluster, links)) return 0;
  double overhead = 0;
  for (const LinkId id : links) {
    const NetworkProtocols& protocols = protocols_of(cluster, id);
    overhead = std::max(overhead, protocols.of[kSimple].start + protocols.step);
  }
  return overhead;
}

}  // namespace agpcs
