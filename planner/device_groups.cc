// SPDX-License-Identifier: Apache-2.0
#include "planner/device_groups.h"

#include <algorithm>
#include <numeric>

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

/// `devices` cut into `runs` runs whose sizes differ by at most one.
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

/// Group i has run i of every host; hosts have equally many devices.
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
  for (const Host& host : cluster.hosts) add(devices_of_host(host));
  for (const int kind : kinds) {
    const std::vector<DeviceId> devices = devices_of_kind(cluster, kind);
    if (!devices.empty()) add({devices.front()});
  }
  return sets;
}

}  // namespace agpcs
