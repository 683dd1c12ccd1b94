// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/device_lattice.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// Returns the devices of each class: one kind on one host, or on hosts that are alike.
DeviceGroups classes_of(const Cluster& cluster, bool by_host) {
  const std::vector<int> alike = host_classes(cluster);
  std::map<std::pair<int, int>, std::size_t> number;
  DeviceGroups classes;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    const Device& device = cluster.devices[at(id)];
    const int host = by_host ? device.host : alike[at(device.host)];
    const auto [entry, added] = number.try_emplace({host, device.kind}, classes.size());
    if (added) classes.emplace_back();
    classes[entry->second].push_back(id);
  }
  return classes;
}

/// Cuts `devices` into runs of `size`. A run crosses hosts only if it is as large as one.
DeviceGroups units_of(const Cluster& cluster, const std::vector<DeviceId>& devices, int size) {
  DeviceGroups units;
  const auto whole = [&](DeviceId id) {
    return cluster.hosts[at(cluster.devices[at(id)].host)].device_count <= size;
  };
  for (const DeviceId id : devices) {
    const bool room = !units.empty() && static_cast<int>(units.back().size()) < size;
    const bool same = room && (whole(id) || cluster.devices[at(units.back().front())].host ==
                                                cluster.devices[at(id)].host);
    if (!same) units.emplace_back();
    units.back().push_back(id);
  }
  return units;
}

/// Returns the number of groups of units that a stage may have, over all states.
double group_count(const std::vector<DeviceGroups>& units) {
  double product = 1;
  for (const DeviceGroups& of_class : units) {
    const double n = static_cast<double>(of_class.size());
    product *= (n + 1) * (n + 2) / 2;
  }
  return product;
}

/// Codes the numbers of units of each class as one number, the first class least significant.
class Counter {
 public:
  explicit Counter(const std::vector<DeviceGroups>& units) {
    for (const DeviceGroups& of_class : units) most_.push_back(static_cast<int>(of_class.size()));
  }
  int states() const {
    int product = 1;
    for (const int most : most_) product *= most + 1;
    return product;
  }
  std::vector<int> digits(int state) const {
    std::vector<int> result;
    for (const int most : most_) {
      result.push_back(state % (most + 1));
      state /= most + 1;
    }
    return result;
  }

 private:
  std::vector<int> most_;
};

void add_groups(DeviceLattice& lattice) {
  for (int from = 0; from < lattice.states; ++from) {
    for (int to = from + 1; to < lattice.states; ++to) {
      std::vector<int> taken;
      std::size_t main = 0;  // the class of which the group has the most units
      bool valid = true;
      for (std::size_t c = 0; c < lattice.units.size(); ++c) {
        taken.push_back(lattice.taken_at[at(to)][c] - lattice.taken_at[at(from)][c]);
        valid = valid && taken.back() >= 0;
        if (taken[c] > taken[main]) main = c;
      }
      if (!valid) continue;
      const DeviceGroups& units = lattice.units[main];
      // Two devices of a class lie on one host if the class does, else on two.
      lattice.groups.push_back({from, to, units.back().back(), units.front().front()});
      lattice.taken.push_back(std::move(taken));
    }
  }
}

/// Makes places of the devices that are entries and exits. Groups on the same number of hosts, more
/// than one, share one place.
void add_places(DeviceLattice& lattice, const Cluster& cluster) {
  const auto host_of = [&](DeviceId id) { return cluster.devices[at(id)].host; };
  std::map<std::pair<DeviceId, int>, int> known;
  const auto place_of = [&](DeviceId device, const std::vector<DeviceId>& group, int hosts) {
    const auto [entry, added] = known.try_emplace({hosts == 1 ? device : kNone, hosts},
                                                  static_cast<int>(lattice.places.size()));
    if (added) {
      const auto other = std::find_if(group.begin(), group.end(),
                                      [&](DeviceId id) { return host_of(id) != host_of(device); });
      lattice.places.push_back({device, other == group.end() ? device : *other, hosts});
    }
    return entry->second;
  };
  for (int g = 0; g < static_cast<int>(lattice.groups.size()); ++g) {
    const std::vector<DeviceId> devices = lattice.devices_of(g);
    std::set<int> hosts;
    for (const DeviceId id : devices) hosts.insert(host_of(id));
    ChainGroup& group = lattice.groups[at(g)];
    group.entry = place_of(group.entry, devices, static_cast<int>(hosts.size()));
    group.exit = place_of(group.exit, devices, static_cast<int>(hosts.size()));
  }
}

}  // namespace

DeviceGroups DeviceLattice::devices_of(const std::vector<ChainStage>& stages) const {
  DeviceGroups result;
  for (const ChainStage& stage : stages) {
    const std::vector<int>& before = taken_at[at(groups[at(stage.group)].from)];
    std::vector<DeviceId> devices;
    for (std::size_t c = 0; c < units.size(); ++c) {
      for (int i = 0; i < taken[at(stage.group)][c]; ++i) {
        const std::vector<DeviceId>& unit = units[c][at(before[c] + i)];
        devices.insert(devices.end(), unit.begin(), unit.end());
      }
    }
    std::sort(devices.begin(), devices.end());
    result.push_back(std::move(devices));
  }
  return result;
}

std::vector<DeviceId> DeviceLattice::devices_of(int group) const {
  return devices_of(std::vector<ChainStage>{{0, 0, group}}).front();
}

std::optional<DeviceLattice> lattice_of_classes(const Cluster& cluster, std::size_t most_groups,
                                                bool& exact) {
  DeviceLattice lattice;
  exact = false;
  for (const bool by_host : {true, false}) {
    const DeviceGroups classes = classes_of(cluster, by_host);
    for (int size = 1; size <= cluster.device_count(); size *= 2) {
      lattice.units.clear();
      for (const std::vector<DeviceId>& devices : classes) {
        lattice.units.push_back(units_of(cluster, devices, size));
      }
      if (group_count(lattice.units) <= static_cast<double>(most_groups)) break;
      lattice.units.clear();
      if (by_host) break;  // prefers all devices of hosts that are alike, one by one
    }
    if (lattice.units.empty()) continue;
    exact = by_host;
    break;
  }
  if (lattice.units.empty()) return std::nullopt;
  const Counter counter(lattice.units);
  lattice.states = counter.states();
  for (int state = 0; state < lattice.states; ++state) {
    lattice.taken_at.push_back(counter.digits(state));
  }
  add_groups(lattice);
  add_places(lattice, cluster);
  return lattice;
}

DeviceLattice lattice_of_runs(const Cluster& cluster, const std::vector<DeviceId>& order,
                              int most_units) {
  DeviceLattice lattice;
  const auto count = static_cast<std::int64_t>(order.size());
  const std::int64_t units = std::min<std::int64_t>(count, most_units);
  for (std::int64_t u = 0; u < units; ++u) {
    lattice.units.push_back(
        {{order.begin() + u * count / units, order.begin() + (u + 1) * count / units}});
  }
  lattice.states = static_cast<int>(units) + 1;
  for (int state = 0; state < lattice.states; ++state) {
    lattice.taken_at.emplace_back(at(static_cast<int>(units)), 0);
    std::fill_n(lattice.taken_at.back().begin(), state, 1);
  }
  for (int from = 0; from < lattice.states; ++from) {
    for (int to = from + 1; to < lattice.states; ++to) {
      lattice.groups.push_back({from, to, lattice.units[at(from)].front().front(),
                                lattice.units[at(to - 1)].front().back()});
      lattice.taken.emplace_back(at(static_cast<int>(units)), 0);
      std::fill(lattice.taken.back().begin() + from, lattice.taken.back().begin() + to, 1);
    }
  }
  add_places(lattice, cluster);
  return lattice;
}

std::vector<std::vector<DeviceId>> device_orders(const Cluster& cluster) {
  std::vector<DeviceId> all(at(cluster.device_count()));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int> alike = host_classes(cluster);
  std::vector<std::vector<DeviceId>> orders;
  std::set<std::vector<std::tuple<int, int, bool>>> known;  // class, kind, whether a host begins
  const auto add = [&](std::vector<DeviceId> order) {
    std::vector<std::tuple<int, int, bool>> look;
    int host = -1;
    for (const DeviceId id : order) {
      const Device& device = cluster.devices[at(id)];
      look.emplace_back(alike[at(device.host)], device.kind, device.host != host);
      host = device.host;
    }
    if (known.insert(std::move(look)).second) orders.push_back(std::move(order));
  };
  const auto add_by = [&](auto value) {
    std::vector<DeviceId> order = all;
    std::stable_sort(order.begin(), order.end(),
                     [&](DeviceId a, DeviceId b) { return value(a) > value(b); });
    add(order);
    add({order.rbegin(), order.rend()});
  };
  add(all);
  add({all.rbegin(), all.rend()});
  add_by([&](DeviceId id) { return cluster.kind_of(id).memory_bandwidth; });
  add_by([&](DeviceId id) { return static_cast<double>(cluster.kind_of(id).memory_bytes); });
  add_by([&](DeviceId id) { return -static_cast<double>(cluster.devices[at(id)].index); });
  return orders;
}

}  // namespace agpcs
