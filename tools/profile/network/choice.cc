// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/choice.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

namespace agpcs {
namespace {

constexpr int kPairsUpTo = 4;

using LinkClass = std::tuple<std::string, double, double>;
using PathClass = std::tuple<int, int, std::vector<LinkClass>>;
using HostClass = std::vector<std::tuple<int, LinkClass, LinkClass>>;

const Device& device_of(const Cluster& cluster, DeviceId id) {
  return cluster.devices[static_cast<std::size_t>(id)];
}

LinkClass class_of(const Cluster& cluster, LinkId id) {
  if (id < 0) return {};
  const Link& link = cluster.links[static_cast<std::size_t>(id)];
  return {link.kind, link.bandwidth, link.latency};
}

PathClass class_of(const Cluster& cluster, DeviceId from, DeviceId to) {
  std::vector<LinkClass> links;
  for (const LinkId id : cluster.route(from, to)) links.push_back(class_of(cluster, id));
  return {device_of(cluster, from).kind, device_of(cluster, to).kind, std::move(links)};
}

std::vector<DeviceId> devices_of(const Host& host) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(host.device_count));
  std::iota(devices.begin(), devices.end(), host.first_device);
  return devices;
}

HostClass class_of(const Cluster& cluster, const Host& host) {
  HostClass kinds;
  for (const DeviceId id : devices_of(host)) {
    const Device& device = device_of(cluster, id);
    kinds.emplace_back(device.kind, class_of(cluster, device.out), class_of(cluster, device.in));
  }
  return kinds;
}

/// Tells whether the path has a link or a class that no earlier path had.
bool shows_more(const Cluster& cluster, DeviceId from, DeviceId to, std::set<LinkId>& links,
                std::set<PathClass>& classes) {
  bool more = classes.insert(class_of(cluster, from, to)).second;
  for (const LinkId id : cluster.route(from, to)) more |= links.insert(id).second;
  return more;
}

std::set<std::vector<DeviceId>> ring_groups(const Cluster& cluster, int all_up_to) {
  std::vector<DeviceId> all(cluster.devices.size());
  std::iota(all.begin(), all.end(), 0);
  std::set<std::vector<DeviceId>> groups = {all};
  std::set<HostClass> classes;
  for (const Host& host : cluster.hosts) {
    const bool first = classes.insert(class_of(cluster, host)).second;
    if (first || cluster.device_count() <= all_up_to) groups.insert(devices_of(host));
  }
  for (DeviceId a = 0; cluster.device_count() <= kPairsUpTo && a < cluster.device_count(); ++a) {
    for (DeviceId b = a + 1; b < cluster.device_count(); ++b) groups.insert({a, b});
  }
  return groups;
}

}  // namespace

std::vector<std::pair<DeviceId, DeviceId>> choose_paths(const Cluster& cluster, int all_up_to) {
  std::vector<std::pair<DeviceId, DeviceId>> paths;
  std::set<LinkId> links;
  std::set<PathClass> classes;
  const bool all = cluster.device_count() <= all_up_to;
  for (DeviceId from = 0; from < cluster.device_count(); ++from) {
    for (DeviceId to = 0; to < cluster.device_count(); ++to) {
      if (from == to) continue;
      if (all || shows_more(cluster, from, to, links, classes)) paths.emplace_back(from, to);
    }
  }
  return paths;
}

std::vector<ChosenCollective> choose_collectives(const Cluster& cluster, int all_up_to) {
  std::vector<ChosenCollective> chosen;
  for (const std::vector<DeviceId>& group : ring_groups(cluster, all_up_to)) {
    if (group.size() > 1) chosen.push_back({AllReduce::kRing, group});
  }
  std::vector<DeviceId> all(cluster.devices.size());
  std::iota(all.begin(), all.end(), 0);
  const bool inside = cluster.hosts.size() < cluster.devices.size();
  if (cluster.hosts.size() > 1 && inside) chosen.push_back({AllReduce::kHierarchical, all});
  if (all.size() > 2) chosen.push_back({AllReduce::kTree, all});
  return chosen;
}

}  // namespace agpcs
