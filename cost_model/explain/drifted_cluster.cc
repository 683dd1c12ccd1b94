// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/drifted_cluster.h"

#include "ir/base/at.h"
#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr double kUnchanged = 1.05;

bool is_one(double factor) { return factor < kUnchanged && factor > 1 / kUnchanged; }

void slow_down(PassFit& fit, double factor) {
  fit.overhead *= factor;
  fit.per_flop *= factor;
  fit.per_byte *= factor;
}

/// Adds a kind for devices that take `factor` times as long as those of `kind`.
int add_slower_kind(Cluster& cluster, int kind, double factor) {
  cluster.kinds.push_back(DeviceKind(cluster.kinds[at(kind)]));
  DeviceKind& own = cluster.kinds.back();
  own.name = fmt::format("{}-x{:.3g}", own.name, factor);
  slow_down(cluster, own, factor);
  own.message_overhead *= factor;
  own.message_compute *= factor;
  own.overlap.compute_seconds_per_byte *= factor;
  if (own.profile.given()) seal_profile(cluster.profiles[at(own.profile.profile)]);
  return static_cast<int>(cluster.kinds.size()) - 1;
}

/// Returns the new number of each item that is left, in order; -1 for those that are gone.
std::vector<int> renumbered(std::size_t count, const std::set<int>& gone) {
  std::vector<int> numbers(count, -1);
  int next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (gone.count(static_cast<int>(i)) == 0) numbers[i] = next++;
  }
  return numbers;
}

/// Removes hosts that have no devices.
void drop_empty_hosts(Cluster& cluster) {
  const std::size_t before = cluster.hosts.size();
  std::set<int> empty;
  for (std::size_t h = 0; h < before; ++h) {
    if (cluster.hosts[h].device_count == 0) empty.insert(static_cast<int>(h));
  }
  const std::vector<int> number = renumbered(before, empty);
  std::vector<std::vector<LinkId>> routes;
  for (std::size_t i = 0; i < cluster.host_routes.size(); ++i) {
    if (number[i / before] >= 0 && number[i % before] >= 0) {
      routes.push_back(std::move(cluster.host_routes[i]));
    }
  }
  cluster.host_routes = std::move(routes);
  std::erase_if(cluster.hosts, [](const Host& host) { return host.device_count == 0; });
  for (Device& device : cluster.devices) device.host = number[at(device.host)];
}

}  // namespace

HardwareDrift compose(HardwareDrift a, const HardwareDrift& b) {
  for (const auto& [device, factor] : b.devices) {
    a.devices.try_emplace(device, 1).first->second *= factor;
  }
  for (const auto& [link, factor] : b.links) {
    LinkFactor& own = a.links[link];
    own.seconds_per_byte *= factor.seconds_per_byte;
    own.latency *= factor.latency;
  }
  std::erase_if(a.devices, [](const auto& entry) { return is_one(entry.second); });
  for (auto& [link, factor] : a.links) {
    if (is_one(factor.seconds_per_byte)) factor.seconds_per_byte = 1;
    if (is_one(factor.latency)) factor.latency = 1;
  }
  std::erase_if(a.links, [](const auto& entry) { return entry.second == LinkFactor(); });
  return a;
}

void slow_down(Cluster& cluster, DeviceKind& kind, double factor) {
  change_measured(cluster, kind, [&](OpClass, MeasuredOperator::Point& point) {
    point.forward.seconds *= factor;
    point.backward.seconds *= factor;
  });
  for (auto& [precision, peak] : kind.peak_flops) peak /= factor;
  kind.processors.board_power /= factor;
  kind.memory_bandwidth /= factor;
  kind.launch_overhead *= factor;
  for (KindFit::Class& fit : kind.fit.classes) {
    slow_down(fit.forward, factor);
    slow_down(fit.backward, factor);
  }
  for (UpdateFit& fit : kind.fit.updates) {
    fit.per_tensor *= factor;
    fit.per_element *= factor;
  }
  kind.fit.begin_per_element *= factor;
}

Cluster drifted_cluster(Cluster cluster, const HardwareDrift& drift) {
  std::map<std::pair<int, double>, int> known;  // the slower kind, by kind and factor
  for (const auto& [id, factor] : drift.devices) {
    AGPCS_CHECK(factor > 0, "device {} computes {} times as long", id, factor);
    int& kind = cluster.devices[at(id)].kind;
    const auto [slower, added] = known.try_emplace({kind, factor}, -1);
    if (added) slower->second = add_slower_kind(cluster, kind, factor);
    kind = slower->second;
  }
  for (const auto& [id, factor] : drift.links) {
    AGPCS_CHECK(factor.seconds_per_byte > 0 && factor.latency > 0, "link {} by {} and {}", id,
                factor.seconds_per_byte, factor.latency);
    Link& link = cluster.links[at(id)];
    link.bandwidth /= factor.seconds_per_byte;
    link.latency *= factor.latency;
    link.profile = {};
  }
  return cluster;
}

Cluster without_devices(const Cluster& cluster, const std::vector<DeviceId>& gone) {
  Cluster left = cluster;
  const std::set<int> missing(gone.begin(), gone.end());
  left.devices.clear();
  for (Host& host : left.hosts) host.device_count = 0;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (missing.count(id) > 0) continue;
    const Device& device = cluster.devices[at(id)];
    Host& host = left.hosts[at(device.host)];
    if (host.device_count++ == 0) host.first_device = left.device_count();
    left.devices.push_back(device);
  }
  AGPCS_CHECK(!left.devices.empty(), "cluster '{}' without any of its devices", cluster.name);
  drop_empty_hosts(left);
  return left;
}

std::string print_drift(const Cluster& cluster, const HardwareDrift& drift) {
  std::string text;
  for (const auto& [device, factor] : drift.devices) {
    fmt::format_to(std::back_inserter(text), "device {} computes {:.3g} times as long\n",
                   cluster.device_name(device), factor);
  }
  for (const auto& [link, factor] : drift.links) {
    fmt::format_to(std::back_inserter(text),
                   "link '{}' takes {:.3g} times as long for a byte, {:.3g} times the latency\n",
                   cluster.links[at(link)].name, factor.seconds_per_byte, factor.latency);
  }
  return text;
}

}  // namespace agpcs
