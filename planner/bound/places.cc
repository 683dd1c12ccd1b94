// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/places.h"

#include "ir/base/at.h"
#include "planner/bound/wires.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// The most places that are told apart.
constexpr std::size_t kMostPlaces = 8;

struct HostFigures {
  std::vector<int> kinds;  // ascending, each once
  HostNetwork network;
};

template <typename Key>
BoundPlaces group_hosts(const Cluster& cluster, const std::vector<HostFigures>& figures, Key key) {
  BoundPlaces result;
  std::map<decltype(key(figures[0])), int> groups;
  std::map<std::pair<int, int>, std::size_t> places;
  for (std::size_t h = 0; h < figures.size(); ++h) {
    const auto [entry, added] =
        groups.try_emplace(key(figures[h]), static_cast<int>(result.groups.size()));
    if (added) result.groups.emplace_back();
    BoundGroup& group = result.groups[at(entry->second)];
    group.out += figures[h].network.out;
    group.in += figures[h].network.in;
    const Host& host = cluster.hosts[h];
    for (DeviceId id = host.first_device; id < host.first_device + host.device_count; ++id) {
      const int kind = cluster.devices[at(id)].kind;
      const auto [place, is_new] = places.try_emplace({kind, entry->second}, result.places.size());
      if (is_new) result.places.push_back({kind, entry->second, 0});
      ++result.places[place->second].devices;
    }
  }
  return result;
}

}  // namespace

BoundPlaces bound_places(const Cluster& cluster) {
  std::vector<HostFigures> figures;
  const std::vector<HostNetwork> networks = networks_of_hosts(cluster);
  for (std::size_t h = 0; h < cluster.hosts.size(); ++h) {
    HostFigures& figure = figures.emplace_back();
    const Host& host = cluster.hosts[h];
    for (DeviceId id = host.first_device; id < host.first_device + host.device_count; ++id) {
      figure.kinds.push_back(cluster.devices[at(id)].kind);
    }
    std::sort(figure.kinds.begin(), figure.kinds.end());
    figure.kinds.erase(std::unique(figure.kinds.begin(), figure.kinds.end()), figure.kinds.end());
    figure.network = networks[h];
  }
  BoundPlaces places = group_hosts(cluster, figures, [](const HostFigures& f) {
    return std::tuple(f.kinds, f.network.out, f.network.in);
  });
  if (places.places.size() <= kMostPlaces) return places;
  places = group_hosts(cluster, figures, [](const HostFigures& f) { return f.kinds; });
  if (places.places.size() <= kMostPlaces) return places;
  return group_hosts(cluster, figures, [](const HostFigures&) { return 0; });
}

BoundPrices bound_prices(const BoundPlaces& places, std::vector<double> money) {
  BoundPrices prices;
  const std::size_t count = places.places.size(), groups = places.groups.size();
  for (std::size_t p = 0; p < count; ++p) {
    prices.device.push_back(money[p] / places.places[p].devices);
  }
  for (std::size_t g = 0; g < groups; ++g) {
    const BoundGroup& group = places.groups[g];
    prices.out.push_back(group.out > 0 ? money[count + g] / group.out : 0);
    prices.in.push_back(group.in > 0 ? money[count + groups + g] / group.in : 0);
  }
  prices.money = std::move(money);
  return prices;
}

}  // namespace agpcs
