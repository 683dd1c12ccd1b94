// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/generated_clusters.h"

#include "ir/base/check.h"
#include "planner/learn/problems/cluster_builder.h"
#include "planner/learn/problems/sixty_clusters.h"
#include "planner/learn/problems/tight_clusters.h"

#include <algorithm>
#include <vector>

namespace agpcs {
namespace {

// The order in which arguments are evaluated depends on the compiler, so each draw is a statement.

int devices_of_a_host(Rng& rng) {
  constexpr int kCounts[] = {1, 2, 2, 4, 4, 4, 8, 8};
  return one_of(rng, kCounts);
}

/// Adds hosts of `kinds`. The first kind appears at least once.
void add_hosts(ClusterBuilder& builder, Rng& rng, const std::vector<Datasheet>& kinds, int hosts) {
  const Nic usual = one_of(rng, kNics);
  const bool same_nics = rng.below(2) == 0;
  for (int host = 0; host < hosts && builder.room() > 0; ++host) {
    const Datasheet& sheet = host == 0 ? kinds.front() : kinds[rng.below(kinds.size())];
    const int devices = std::min(devices_of_a_host(rng), builder.room());
    builder.add_host(sheet, devices, same_nics ? usual : one_of(rng, kNics));
  }
  if (builder.devices() < 2) builder.add_host(kinds.back(), 1, usual);
}

Cluster single_host(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const int devices = some(rng, 2, 8);
  const double slower = rng.below(3) == 0 ? 0.5 : 1;
  const Datasheet sheet = some_kinds(rng, 1, 1, Purpose::kTraining).front();
  builder.add_host(sheet, devices, kNics[0], slower);
  return builder.join_by_switch();
}

Cluster even_hosts(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const Datasheet sheet = some_kinds(rng, 1, 1, Purpose::kTraining).front();
  const int hosts = some(rng, 2, 8);
  const int devices = std::min(devices_of_a_host(rng), kMostDevices / hosts);
  const Nic nic = one_of(rng, kNics);
  for (int host = 0; host < hosts; ++host) builder.add_host(sheet, devices, nic);
  return builder.join_by_switch();
}

Cluster mixed(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 1, 4, Purpose::kTraining);
  add_hosts(builder, rng, kinds, some(rng, 1, 8));
  return builder.join_by_switch();
}

/// Makes a host with many devices, and hosts with one or two that are far away.
Cluster uneven(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 3, Purpose::kTraining);
  const Nic& fast = kNics[some(rng, 3, 8)];
  builder.add_host(kinds.front(), some(rng, 4, 8), fast);
  for (int hosts = some(rng, 1, 5); hosts > 0; --hosts) {
    const Nic& slow = kNics[some(rng, 0, 2)];
    const int devices = some(rng, 1, 2);
    builder.add_host(kinds[rng.below(kinds.size())], devices, slow);
  }
  return builder.join_by_switch();
}

Cluster new_and_old(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 4, Purpose::kRegression);
  add_hosts(builder, rng, kinds, some(rng, 2, 8));
  return builder.join_by_switch();
}

Cluster racks(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = some_kinds(rng, 2, 3, Purpose::kRegression);
  const int hosts = some(rng, 4, 8);
  for (int host = 0; host < hosts; ++host) {
    const Datasheet& sheet = host == 0 ? kinds.front() : kinds[rng.below(kinds.size())];
    const Nic& nic = kNics[some(rng, 3, 8)];
    builder.add_host(sheet, some(rng, 1, kMostDevices / hosts), nic);
  }
  const Nic& uplink = kNics[some(rng, 1, 5)];
  return builder.join_racks(some(rng, 2, 3), uplink);
}

constexpr ClusterShape kShapes[] = {
    {"single_host", "2 to 8 devices of one kind", Purpose::kTraining, single_host},
    {"even_hosts", "equal hosts behind a switch", Purpose::kTraining, even_hosts},
    {"mixed", "1 to 8 hosts of up to 4 kinds behind a switch", Purpose::kTraining, mixed},
    {"uneven", "a large host, small ones behind slow links", Purpose::kTraining, uneven},
    {"new_and_old", "hosts of up to 4 kinds, T4 or H100 among them", Purpose::kRegression,
     new_and_old},
    {"racks", "racks with slow uplinks, T4 or H100 among them", Purpose::kRegression, racks},
    {"pcie_trees", "boxes of two PCIe switches, whose devices share the way out, on 10 Gbit/s",
     Purpose::kSixty, pcie_trees},
    {"two_sites", "two sites joined by one thin, long line", Purpose::kSixty, two_sites},
    {"island", "an NVLink host, stragglers behind slow links", Purpose::kSixty, island},
    {"workstations", "boards of unlike slots (x16, x8, x4), on 10 Gbit/s", Purpose::kSixty,
     workstations},
    {"two_kinds", "hosts with devices of two kinds in one box", Purpose::kSixty, two_kinds},
    {"ring", "hosts cabled to their neighbours, without a switch", Purpose::kSixty, ring},
    {"stragglers", "hosts of 1 or 2 devices of up to 4 kinds, each with a NIC of its own speed",
     Purpose::kTightTraining, stragglers},
    {"unequal_racks", "racks of two hosts, each rack with an uplink of its own speed",
     Purpose::kTightTraining, unequal_racks},
    {"motley_singles", "single devices of 4 to 6 kinds, each with a NIC of its own speed",
     Purpose::kRoom, motley_singles},
    {"host_line", "hosts cabled in a line, each cable of its own speed", Purpose::kRoom, host_line},
    {"bridged_islands", "islands of one kind each, every two with a bridge of its own speed",
     Purpose::kRoom, bridged_islands},
};

}  // namespace

std::span<const ClusterShape> cluster_shapes() { return kShapes; }

const ClusterShape* find_cluster_shape(std::string_view name) {
  for (const ClusterShape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

Purpose purpose_of_device(std::string_view kind) {
  for (const Datasheet& sheet : datasheets()) {
    if (sheet.name == kind) return sheet.purpose;
  }
  AGPCS_CHECK(false, "no datasheet of '{}'", kind);
}

}  // namespace agpcs
