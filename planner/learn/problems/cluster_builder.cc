// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/cluster_builder.h"

#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

constexpr double kTera = 1e12;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

constexpr Datasheet kDatasheets[] = {
    {"p100", 16, 732, 9.3, 0, 18.7, "pcie", 11, Purpose::kTraining},
    {"v100", 16, 900, 15.7, 0, 125, "nvlink", 50, Purpose::kTraining},
    {"v100-32", 32, 900, 15.7, 0, 125, "nvlink", 50, Purpose::kTraining},
    {"rtx3090", 24, 936, 35.6, 35.6, 71, "pcie", 16, Purpose::kTraining},
    {"a10", 24, 600, 31.2, 62.5, 125, "pcie", 16, Purpose::kTraining},
    {"a100", 40, 1555, 19.5, 156, 312, "nvlink", 200, Purpose::kTraining},
    {"a100-80", 80, 2039, 19.5, 156, 312, "nvlink", 200, Purpose::kTraining},
    {"t4", 16, 320, 8.1, 0, 65, "pcie", 11, Purpose::kRegression},
    {"h100", 80, 3350, 67, 495, 989, "nvlink", 300, Purpose::kRegression},
    {"rtx2080ti", 11, 616, 13.4, 0, 53.8, "pcie", 11, Purpose::kSixty},
    {"rtx4090", 24, 1008, 82.6, 82.6, 165.2, "pcie", 16, Purpose::kSixty},
    {"a6000", 48, 768, 38.7, 77.4, 154.8, "pcie", 16, Purpose::kSixty},
    {"a40", 48, 696, 37.4, 74.8, 149.7, "pcie", 16, Purpose::kSixty},
    {"a30", 24, 933, 10.3, 82, 165, "pcie", 16, Purpose::kSixty},
    {"l4", 24, 300, 30.3, 60, 121, "pcie", 16, Purpose::kSixty},
    {"l40", 48, 864, 90.5, 90.5, 181, "pcie", 16, Purpose::kSixty},
    {"rtx3060", 12, 360, 12.7, 12.7, 25.5, "pcie", 16, Purpose::kRoom},
    {"titan-rtx", 24, 672, 16.3, 0, 130.5, "pcie", 11, Purpose::kRoom},
    {"a2", 16, 200, 4.5, 9, 18, "pcie", 11, Purpose::kRoom},
};

DeviceKind kind_of(const Datasheet& sheet) {
  DeviceKind kind;
  kind.name = sheet.name;
  kind.memory_bytes = sheet.memory_gib * kGiB;
  kind.memory_bandwidth = sheet.memory_gbs * 1e9;
  kind.peak_flops = {{Precision::kFp32, sheet.fp32 * kTera},
                     {Precision::kFp16, sheet.fp16 * kTera}};
  if (sheet.tf32 > 0) kind.peak_flops[Precision::kTf32] = sheet.tf32 * kTera;
  return kind;
}

}  // namespace

std::span<const Datasheet> datasheets() { return kDatasheets; }

std::vector<Datasheet> some_kinds(Rng& rng, int least, int most, Purpose purpose) {
  std::vector<Datasheet> pool, kinds;
  std::vector<std::size_t> own;  // indices into the pool
  for (const Datasheet& sheet : kDatasheets) {
    if (sheet.purpose == purpose) own.push_back(pool.size());
    if (sheet.purpose <= purpose) pool.push_back(sheet);
  }
  const auto take = [&](std::size_t index) {
    kinds.push_back(pool[index]);
    pool.erase(pool.begin() + static_cast<std::ptrdiff_t>(index));
  };
  const auto count = static_cast<std::size_t>(some(rng, least, most));
  if (purpose != Purpose::kTraining) take(own[own.size() - 1 - rng.below(own.size())]);
  while (kinds.size() < count) take(rng.below(pool.size()));
  return kinds;
}

void ClusterBuilder::add_host(const std::vector<Slot>& slots, const Nic& nic) {
  const std::string name = fmt::format("h{}", hosts());
  cluster_.hosts.push_back({name, devices(), static_cast<int>(slots.size())});
  for (int i = 0; i < static_cast<int>(slots.size()); ++i) {
    const auto& [sheet, slower] = slots[static_cast<std::size_t>(i)];
    const int kind = kind_index(sheet);
    const double bandwidth = sheet.link_gbs * 1e9 * slower;
    const std::string device = fmt::format("{}/{}", name, i);
    const LinkId out = add_link(device + " out", sheet.link, bandwidth, 4e-6);
    const LinkId in = add_link(device + " in", sheet.link, bandwidth, 4e-6);
    cluster_.devices.push_back({hosts(), i, kind, out, in});
  }
  nics_.push_back(add_pair(name + " nic", nic));
}

void ClusterBuilder::add_host(const Datasheet& sheet, int devices, const Nic& nic, double slower) {
  add_host(std::vector<Slot>(static_cast<std::size_t>(devices), {sheet, slower}), nic);
}

LinkId ClusterBuilder::add_cable(std::string name, const Nic& cable) {
  return add_link(std::move(name), cable.kind, cable.gbits * 1e9 / 8, cable.micros * 1e-6);
}

Cluster ClusterBuilder::join(std::string_view topology, const Between& between) {
  cluster_.topology = topology;
  const auto count = static_cast<std::size_t>(hosts());
  cluster_.host_routes.assign(count * count, {});
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      if (from == to) continue;
      std::vector<LinkId>& route = cluster_.host_routes[from * count + to];
      route = between(static_cast<int>(from), static_cast<int>(to));
      route.insert(route.begin(), nics_[from].out);
      route.push_back(nics_[to].in);
    }
  }
  const Status status = verify_cluster(cluster_);
  AGPCS_CHECK(status.ok(), "{}", status.message());
  return std::move(cluster_);
}

Cluster ClusterBuilder::join_by_switch() {
  return join("switch", [](int, int) { return std::vector<LinkId>(); });
}

Cluster ClusterBuilder::join_racks(int hosts_each, const Nic& uplink) {
  std::vector<Ports> uplinks;
  for (int rack = 0; rack <= (hosts() - 1) / hosts_each; ++rack) {
    uplinks.push_back(add_pair(fmt::format("rack{} uplink", rack), uplink));
  }
  return join("links", [&](int from, int to) -> std::vector<LinkId> {
    const auto here = static_cast<std::size_t>(from / hosts_each);
    const auto there = static_cast<std::size_t>(to / hosts_each);
    if (here == there) return {};
    return {uplinks[here].out, uplinks[there].in};
  });
}

int ClusterBuilder::kind_index(const Datasheet& sheet) {
  std::vector<DeviceKind>& kinds = cluster_.kinds;
  const auto found = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const DeviceKind& kind) { return kind.name == sheet.name; });
  const auto index = static_cast<int>(found - kinds.begin());
  if (found == kinds.end()) kinds.push_back(agpcs::kind_of(sheet));
  return index;
}

LinkId ClusterBuilder::add_link(std::string name, std::string_view kind, double bandwidth,
                                double latency) {
  Link link;
  link.name = std::move(name);
  link.kind = kind;
  link.bandwidth = bandwidth;
  link.latency = latency;
  cluster_.links.push_back(std::move(link));
  return static_cast<LinkId>(cluster_.links.size()) - 1;
}

ClusterBuilder::Ports ClusterBuilder::add_pair(const std::string& name, const Nic& nic) {
  const LinkId out = add_cable(name + " out", nic);
  return {out, add_cable(name + " in", nic)};
}

}  // namespace agpcs
