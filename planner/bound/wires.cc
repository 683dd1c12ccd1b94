// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/wires.h"

#include "ir/base/at.h"

#include <algorithm>
#include <limits>

namespace agpcs {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

const Link& link(const Cluster& cluster, LinkId id) { return cluster.links[at(id)]; }

/// Returns the least latency that the link adds to a message, by any of its protocols.
double least_latency(const Cluster& cluster, LinkId id) {
  const Link& one = link(cluster, id);
  double least = 1;
  if (one.protocols >= 0) {
    for (const NetworkProtocols::Figures& figures : cluster.protocols[at(one.protocols)].of) {
      if (figures.rate > 0) least = std::min(least, figures.latency);
    }
  }
  return least * one.latency;
}

const std::vector<LinkId>& route(const Cluster& cluster, std::size_t from, std::size_t to) {
  return cluster.host_routes[from * cluster.hosts.size() + to];
}

/// Bytes that leave a host go over one of the first links of its routes; those that enter it, over
/// one of the last links of routes to it.
double bandwidth_of_ends(const Cluster& cluster, std::size_t host, bool leaving) {
  std::vector<LinkId> ends;
  for (std::size_t other = 0; other < cluster.hosts.size(); ++other) {
    const std::vector<LinkId>& links =
        leaving ? route(cluster, host, other) : route(cluster, other, host);
    if (other != host && !links.empty()) ends.push_back(leaving ? links.front() : links.back());
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  double bandwidth = 0;
  for (const LinkId id : ends) bandwidth += link(cluster, id).bandwidth;
  return bandwidth;
}

/// Returns the least latency between two hosts.
double latency_between_hosts(const Cluster& cluster) {
  double least = kNever;
  for (std::size_t a = 0; a < cluster.hosts.size(); ++a) {
    for (std::size_t b = 0; b < cluster.hosts.size(); ++b) {
      const std::vector<LinkId>& links = route(cluster, a, b);
      if (a == b || links.empty()) continue;
      double latency = 0;
      for (const LinkId id : links) latency += least_latency(cluster, id);
      least = std::min(least, latency);
    }
  }
  return least;
}

}  // namespace

std::vector<HostNetwork> networks_of_hosts(const Cluster& cluster) {
  std::vector<HostNetwork> networks;
  for (std::size_t h = 0; h < cluster.hosts.size(); ++h) {
    networks.push_back({bandwidth_of_ends(cluster, h, true), bandwidth_of_ends(cluster, h, false)});
  }
  return networks;
}

// A device that computes has `communication_factor` of its ports' bandwidth, which may be above 1.
Wires wires_inside(const Cluster& cluster, const Host& host) {
  Wires wires;
  double in = kNever, out = kNever;
  for (DeviceId id = host.first_device; id < host.first_device + host.device_count; ++id) {
    const Device& device = cluster.devices[at(id)];
    in = std::min(in, least_latency(cluster, device.in));
    out = std::min(out, least_latency(cluster, device.out));
    const double factor =
        std::max(1.0, cluster.kinds[at(device.kind)].overlap.communication_factor);
    wires.bandwidth = std::max(
        wires.bandwidth,
        factor * std::min(link(cluster, device.in).bandwidth, link(cluster, device.out).bandwidth));
  }
  wires.latency = in + out;
  return wires;
}

std::vector<Wires> wires_between_hosts(const Cluster& cluster,
                                       const std::vector<HostNetwork>& networks) {
  std::vector<double> fastest;
  for (const HostNetwork& network : networks) fastest.push_back(network.slower());
  std::sort(fastest.rbegin(), fastest.rend());
  const double latency = latency_between_hosts(cluster);
  std::vector<Wires> wires;
  for (std::size_t i = 1; i < fastest.size(); ++i) {
    if (wires.empty() || fastest[i] < wires.back().bandwidth)
      wires.push_back({latency, fastest[i]});
  }
  return wires;
}

double least_latency(const Cluster& cluster) {
  double least = latency_between_hosts(cluster);
  for (const Host& host : cluster.hosts) {
    if (host.device_count > 1) least = std::min(least, wires_inside(cluster, host).latency);
  }
  return least;
}

}  // namespace agpcs
