// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/sixty_clusters.h"

#include "planner/learn/problems/cluster_builder.h"

#include <fmt/format.h>

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

constexpr Nic kTenGigabit = {"ethernet", 10, 30};

std::vector<Datasheet> sixty_kinds(Rng& rng, int least, int most) {
  return some_kinds(rng, least, most, Purpose::kSixty);
}

/// Returns the first kind for the first host, so that it appears.
const Datasheet& kind_for(Rng& rng, const std::vector<Datasheet>& kinds, const ClusterBuilder& b) {
  return b.hosts() == 0 ? kinds.front() : kinds[rng.below(kinds.size())];
}

}  // namespace

/// Makes PCIe trees. A PCIe switch is a host of its own; its NIC is the switch's port to the
/// processor.
Cluster pcie_trees(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = sixty_kinds(rng, 1, 2);
  constexpr Nic kUpstream[] = {{"pcie", 88, 1}, {"pcie", 128, 1}, {"pcie", 176, 1}};
  const Nic& upstream = one_of(rng, kUpstream);
  for (int boxes = some(rng, 1, 3); boxes > 0; --boxes) {
    const Datasheet& sheet = kind_for(rng, kinds, builder);
    const int devices = some(rng, 1, 4);
    for (int half = 0; half < 2; ++half) builder.add_host(sheet, devices, upstream);
  }
  return builder.join_racks(2, kTenGigabit);
}

/// Makes two sites. Everything between them passes one line, one for each direction.
Cluster two_sites(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = sixty_kinds(rng, 1, 3);
  const int here = some(rng, 1, 3), hosts = here + some(rng, 1, 2);
  for (int host = 0; host < hosts; ++host) {
    const Datasheet& sheet = kind_for(rng, kinds, builder);
    const int devices = some(rng, 1, 4);
    builder.add_host(sheet, devices, kNics[some(rng, 3, 8)]);
  }
  constexpr Nic kLines[] = {{"tcp", 1, 2000}, {"tcp", 2, 500}, {"tcp", 10, 5000}, {"tcp", 10, 300}};
  const Nic& line = one_of(rng, kLines);
  const LinkId there = builder.add_cable("line there", line);
  const LinkId back = builder.add_cable("line back", line);
  return builder.join("links", [&](int from, int to) -> std::vector<LinkId> {
    if ((from < here) == (to < here)) return {};
    return {from < here ? there : back};
  });
}

Cluster island(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  std::vector<Datasheet> fast;
  for (const Datasheet& sheet : datasheets()) {
    if (sheet.link == "nvlink") fast.push_back(sheet);
  }
  const Datasheet& sheet = fast[rng.below(fast.size())];
  const int devices = some(rng, 4, 8);
  builder.add_host(sheet, devices, kNics[some(rng, 3, 8)]);
  const std::vector<Datasheet> kinds = sixty_kinds(rng, 1, 3);
  for (int stragglers = some(rng, 1, 5); stragglers > 0; --stragglers) {
    // The first straggler has the first of the kinds, which is for judging.
    const Datasheet& straggler =
        builder.hosts() == 1 ? kinds.front() : kinds[rng.below(kinds.size())];
    const int few = some(rng, 1, 2);
    builder.add_host(straggler, few, kNics[some(rng, 0, 2)]);
  }
  return builder.join_by_switch();
}

Cluster workstations(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = sixty_kinds(rng, 1, 3);
  constexpr double kSlots[] = {1, 1, 0.5, 0.25};
  for (int hosts = some(rng, 2, 6); hosts > 0; --hosts) {
    const Datasheet& sheet = kind_for(rng, kinds, builder);
    std::vector<ClusterBuilder::Slot> slots;
    for (int devices = some(rng, 1, 4); devices > 0; --devices) {
      slots.push_back({sheet, one_of(rng, kSlots)});
    }
    builder.add_host(slots, kTenGigabit);
  }
  return builder.join_by_switch();
}

Cluster two_kinds(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = sixty_kinds(rng, 2, 3);
  const Nic& nic = one_of(rng, kNics);
  for (int hosts = some(rng, 1, 4); hosts > 0; --hosts) {
    const std::size_t one = builder.hosts() == 0 ? 0 : rng.below(kinds.size());
    const std::size_t other = (one + 1 + rng.below(kinds.size() - 1)) % kinds.size();
    std::vector<ClusterBuilder::Slot> slots;
    for (int devices = some(rng, 1, 4); devices > 0; --devices) slots.push_back({kinds[one]});
    for (int devices = some(rng, 1, 3); devices > 0; --devices) slots.push_back({kinds[other]});
    builder.add_host(slots, nic);
  }
  return builder.join_by_switch();
}

/// Makes a ring. Hosts pass on what is for others, the shorter way round. A host's NIC is the
/// bandwidth between its card and the host.
Cluster ring(const std::string& name, Rng rng) {
  ClusterBuilder builder(name);
  const std::vector<Datasheet> kinds = sixty_kinds(rng, 1, 2);
  const int hosts = some(rng, 3, 6);
  for (int host = 0; host < hosts; ++host) {
    const Datasheet& sheet = kind_for(rng, kinds, builder);
    const int devices = some(rng, 1, 4);
    builder.add_host(sheet, devices, {"pcie", 100, 1});
  }
  constexpr Nic kCables[] = {{"ethernet", 10, 20}, {"ethernet", 25, 10}, {"ib", 100, 3}};
  const Nic& cable = one_of(rng, kCables);
  std::vector<LinkId> up, down;  // by the host that they leave
  for (int host = 0; host < hosts; ++host) {
    up.push_back(builder.add_cable(fmt::format("h{} up", host), cable));
    down.push_back(builder.add_cable(fmt::format("h{} down", host), cable));
  }
  return builder.join("links", [&](int from, int to) {
    std::vector<LinkId> route;
    const bool upwards = (to - from + hosts) % hosts * 2 <= hosts;
    for (int at = from; at != to; at = (at + (upwards ? 1 : hosts - 1)) % hosts) {
      route.push_back((upwards ? up : down)[static_cast<std::size_t>(at)]);
    }
    return route;
  });
}

}  // namespace agpcs
