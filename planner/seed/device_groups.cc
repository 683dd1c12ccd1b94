// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/device_groups.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

std::vector<DeviceId> devices_of_kind(const Cluster& cluster, int kind) {
  std::vector<DeviceId> devices;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (cluster.devices[static_cast<std::size_t>(id)].kind == kind) devices.push_back(id);
  }
  return devices;
}

std::vector<DeviceId> devices_of_host(const Host& host) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(host.device_count));
  std::iota(devices.begin(), devices.end(), host.first_device);
  return devices;
}

DeviceGroups by_kind(const Cluster& cluster) {
  DeviceGroups groups;
  for (int kind = 0; kind < static_cast<int>(cluster.kinds.size()); ++kind) {
    std::vector<DeviceId> devices = devices_of_kind(cluster, kind);
    if (!devices.empty()) groups.push_back(std::move(devices));
  }
  return groups;
}

/// Cuts `devices` into `runs` runs whose sizes differ by at most one.
DeviceGroups cut(const std::vector<DeviceId>& devices, std::size_t runs) {
  runs = std::min(runs, devices.size());
  DeviceGroups groups;
  for (std::size_t i = 0; i < runs; ++i) {
    groups.emplace_back(
        devices.begin() + static_cast<std::ptrdiff_t>(i * devices.size() / runs),
        devices.begin() + static_cast<std::ptrdiff_t>((i + 1) * devices.size() / runs));
  }
  return groups;
}

DeviceGroups cut_hosts(const Cluster& cluster, std::size_t runs) {
  DeviceGroups groups;
  for (const Host& host : cluster.hosts) {
    for (std::vector<DeviceId>& run : cut(devices_of_host(host), runs)) {
      groups.push_back(std::move(run));
    }
  }
  return groups;
}

/// Makes groups of which group i has run i of every host. Needs: hosts have equally many devices.
DeviceGroups across_hosts(const Cluster& cluster, std::size_t runs) {
  DeviceGroups groups(runs);
  for (const Host& host : cluster.hosts) {
    const DeviceGroups parts = cut(devices_of_host(host), runs);
    for (std::size_t i = 0; i < runs; ++i) {
      groups[i].insert(groups[i].end(), parts[i].begin(), parts[i].end());
    }
  }
  return groups;
}

double memory_bandwidth(const Cluster& cluster, int host) {
  double sum = 0;
  for (const DeviceId id : devices_of_host(cluster.hosts[static_cast<std::size_t>(host)])) {
    sum += cluster.kind_of(id).memory_bandwidth;
  }
  return sum;
}

/// Returns the hosts, those with the largest values of `f` first; ties go by class, then to the
/// lower host.
template <typename F>
std::vector<int> hosts_by(const Cluster& cluster, const std::vector<int>& classes, F f) {
  std::vector<int> order(cluster.hosts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int host) {
    return std::pair(-f(host), classes[static_cast<std::size_t>(host)]);
  };
  std::vector<std::pair<double, int>> keys;
  for (const int host : order) keys.push_back(key(host));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
  });
  return order;
}

/// Calls `add` with the devices of the first 1, 2, ... hosts of `order`. If hosts are many, it does
/// so only for 1, 2, 4, ... hosts and for those up to the last of a class.
template <typename F>
void join_hosts(const Cluster& cluster, const std::vector<int>& classes,
                const std::vector<int>& order, F add) {
  constexpr std::size_t kMany = 16;
  std::vector<DeviceId> joined;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto host = static_cast<std::size_t>(order[i]);
    const std::vector<DeviceId> devices = devices_of_host(cluster.hosts[host]);
    joined.insert(joined.end(), devices.begin(), devices.end());
    const bool doubled = ((i + 1) & i) == 0;
    const bool last =
        i + 1 == order.size() || classes[host] != classes[static_cast<std::size_t>(order[i + 1])];
    if (order.size() <= kMany || doubled || last) add(joined);
  }
}

template <typename T>
void add_once(std::vector<T>& list, T item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
}

}  // namespace

std::vector<DeviceGroups> groupings(const Cluster& cluster) {
  std::vector<DeviceGroups> result;
  const auto add = [&](DeviceGroups groups) {
    if (groups.size() >= 2) add_once(result, std::move(groups));
  };
  int most = 0, least = cluster.device_count();
  for (const Host& host : cluster.hosts) {
    most = std::max(most, host.device_count);
    least = std::min(least, host.device_count);
  }
  add(cut_hosts(cluster, 1));
  add(by_kind(cluster));
  for (int runs = 2; runs < 2 * most; runs *= 2) {
    add(cut_hosts(cluster, static_cast<std::size_t>(runs)));
  }
  if (most != least || cluster.hosts.size() < 2) return result;
  for (int runs = 2; runs < 2 * most; runs *= 2) {
    add(across_hosts(cluster, static_cast<std::size_t>(std::min(runs, most))));
  }
  return result;
}

std::vector<std::vector<DeviceId>> device_sets(const Cluster& cluster) {
  std::vector<std::vector<DeviceId>> sets;
  const auto add = [&](std::vector<DeviceId> set) {
    if (set.empty()) return;
    std::sort(set.begin(), set.end());
    add_once(sets, std::move(set));
  };
  std::vector<DeviceId> all(static_cast<std::size_t>(cluster.device_count()));
  std::iota(all.begin(), all.end(), 0);
  add(all);
  std::vector<int> kinds(cluster.kinds.size());
  std::iota(kinds.begin(), kinds.end(), 0);
  for (const int kind : kinds) add(devices_of_kind(cluster, kind));
  std::stable_sort(kinds.begin(), kinds.end(), [&](int a, int b) {
    return cluster.kinds[static_cast<std::size_t>(a)].memory_bandwidth >
           cluster.kinds[static_cast<std::size_t>(b)].memory_bandwidth;
  });
  std::vector<DeviceId> joined;
  for (const int kind : kinds) {
    const std::vector<DeviceId> more = devices_of_kind(cluster, kind);
    joined.insert(joined.end(), more.begin(), more.end());
    add(joined);
  }
  const std::vector<int> classes = host_classes(cluster);
  std::vector<DeviceGroups> runs;  // the first 2, 4, ... devices of the first host of each class
  for (std::size_t host = 0; host < classes.size(); ++host) {
    if (classes[host] != static_cast<int>(runs.size())) continue;
    const std::vector<DeviceId> devices = devices_of_host(cluster.hosts[host]);
    add(devices);
    runs.emplace_back();
    for (std::size_t count = 2; count < devices.size(); count *= 2) {
      runs.back().emplace_back(devices.begin(),
                               devices.begin() + static_cast<std::ptrdiff_t>(count));
    }
  }
  for (const int kind : kinds) {
    const std::vector<DeviceId> devices = devices_of_kind(cluster, kind);
    if (!devices.empty()) add({devices.front()});
  }
  const auto network = [&](int host) { return network_speed(cluster, host); };
  const auto bandwidth = [&](int host) { return memory_bandwidth(cluster, host); };
  join_hosts(cluster, classes, hosts_by(cluster, classes, network), add);
  join_hosts(cluster, classes, hosts_by(cluster, classes, bandwidth), add);
  for (const DeviceGroups& of_class : runs) {
    for (const std::vector<DeviceId>& run : of_class) add(run);
  }
  return sets;
}

double network_speed(const Cluster& cluster, int host) {
  double most = 0;
  for (std::size_t other = 0; other < cluster.hosts.size(); ++other) {
    const auto& route =
        cluster.host_routes[static_cast<std::size_t>(host) * cluster.hosts.size() + other];
    if (route.empty()) continue;
    double least = cluster.links[static_cast<std::size_t>(route.front())].bandwidth;
    for (const LinkId link : route) {
      least = std::min(least, cluster.links[static_cast<std::size_t>(link)].bandwidth);
    }
    most = std::max(most, least);
  }
  return most;
}

std::vector<int> host_classes(const Cluster& cluster) {
  using Port = std::tuple<int, double, double, int>;  // kind, bandwidth, latency, protocols
  using Class = std::pair<double, std::vector<Port>>;
  std::vector<Class> known;
  std::vector<int> classes;
  for (int host = 0; host < static_cast<int>(cluster.hosts.size()); ++host) {
    Class own = {network_speed(cluster, host), {}};
    for (const DeviceId id : devices_of_host(cluster.hosts[static_cast<std::size_t>(host)])) {
      const Device& device = cluster.devices[static_cast<std::size_t>(id)];
      const Link& out = cluster.links[static_cast<std::size_t>(device.out)];
      own.second.emplace_back(device.kind, out.bandwidth, out.latency, out.protocols);
    }
    const auto found = std::find(known.begin(), known.end(), own);
    classes.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(std::move(own));
  }
  return classes;
}

}  // namespace agpcs
