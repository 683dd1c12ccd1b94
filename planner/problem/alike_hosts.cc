// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/alike_hosts.h"

#include "ir/base/at.h"

#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct Nic {
  LinkId out = kNone, in = kNone;
};

/// Returns the NICs by host, or nothing if there is more between hosts, or hosts share one.
std::vector<Nic> nics_of(const Cluster& cluster) {
  const std::size_t hosts = cluster.hosts.size();
  std::vector<Nic> nics(hosts);
  const auto agrees = [](LinkId& known, LinkId link) {
    if (known == kNone) known = link;
    return known == link;
  };
  for (std::size_t from = 0; from < hosts; ++from) {
    for (std::size_t to = 0; to < hosts; ++to) {
      if (from == to) continue;
      const std::vector<LinkId>& route = cluster.host_routes[from * hosts + to];
      if (route.size() != 2 || !agrees(nics[from].out, route.front()) ||
          !agrees(nics[to].in, route.back())) {
        return {};
      }
    }
  }
  std::set<LinkId> links;
  for (const Nic& nic : nics) links.insert({nic.out, nic.in});
  if (links.size() != 2 * hosts) return {};
  return nics;
}

}  // namespace

std::vector<int> alike_hosts(const Cluster& cluster) {
  std::vector<int> classes(cluster.hosts.size());
  std::iota(classes.begin(), classes.end(), 0);
  const std::vector<Nic> nics = nics_of(cluster);
  if (nics.size() < 2) return classes;
  // Kind, link, bandwidth, latency, protocols.
  using Line = std::tuple<int, int, double, double, int>;
  std::map<std::vector<Line>, int> known;
  for (std::size_t host = 0; host < classes.size(); ++host) {
    std::vector<Line> own;
    std::map<LinkId, int> numbers;  // of the host's links, which devices may share
    const auto add = [&](int kind, LinkId id) {
      const int number = numbers.try_emplace(id, static_cast<int>(numbers.size())).first->second;
      const Link& link = cluster.links[at(id)];
      own.emplace_back(kind, number, link.bandwidth, link.latency, link.protocols);
    };
    add(-1, nics[host].out);
    add(-1, nics[host].in);
    const Host& here = cluster.hosts[host];
    for (int i = 0; i < here.device_count; ++i) {
      const Device& device = cluster.devices[at(here.first_device + i)];
      add(device.kind, device.out);
      add(device.kind, device.in);
    }
    classes[host] = known.try_emplace(std::move(own), classes[host]).first->second;
  }
  return classes;
}

}  // namespace agpcs
