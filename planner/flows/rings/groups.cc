// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/rings/groups.h"

#include "ir/base/at.h"
#include "ir/base/disjoint_sets.h"
#include "planner/flows/hops.h"
#include "planner/flows/rings/part.h"
#include "planner/flows/rings/rings.h"
#include "planner/flows/trees/forests.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr int kGroupRingTries = 4;

using Groups = std::vector<std::vector<int>>;  // servers, ascending; groups by their first server

/// Returns the groups that links of at least `capacity` join. Empty unless there are at least two
/// groups, all of one size, of at least two servers.
Groups groups_of(const Topology& topology, std::int64_t capacity) {
  DisjointSets<> joined(at(topology.nodes()));
  for (const Topology::Link& link : topology.links) {
    if (link.capacity >= capacity) joined.join(link.from, link.to);
  }
  std::map<int, std::vector<int>> by_root;
  for (int s = 0; s < topology.servers; ++s) by_root[joined.find(s)].push_back(s);
  Groups groups;
  for (auto& [root, servers] : by_root) groups.push_back(std::move(servers));
  std::sort(groups.begin(), groups.end());
  const std::size_t size = groups[0].size();
  const bool alike = std::all_of(groups.begin(), groups.end(),
                                 [&](const auto& group) { return group.size() == size; });
  return alike && size > 1 && groups.size() > 1 ? groups : Groups();
}

/// Returns the hops of a ring over the j-th servers of the groups, by the group that they lead to,
/// and takes their units. Empty if there is no ring.
std::vector<FlowRoute> ring_of(const Topology& topology, const Groups& groups, std::size_t j,
                               std::vector<std::int64_t>& left, const Rng& rng) {
  std::vector<int> servers;
  for (const std::vector<int>& group : groups) servers.push_back(group[j]);
  const FlowPart part = part_of(topology, servers, left);
  const std::vector<FlowRing> rings = find_rings(part.topology, 1, rng, kGroupRingTries);
  if (rings.empty()) return {};
  std::vector<FlowRoute> hops(groups.size());
  for (const FlowRoute& hop : rings[0].hops) {
    FlowRoute& route = hops[at(hop.to)];
    route = part.whole(hop);
    const std::size_t pair = at(route.from) * at(topology.servers) + at(route.to);
    if (!topology.routes.empty() && topology.routes[pair] != route.links) return {};
  }
  for (const FlowRoute& route : hops) {
    for (const int l : route.links) --left[at(l)];
  }
  return hops;
}

class GroupForest {
 public:
  GroupForest(const Topology& topology, Groups groups, int sub_chunks)
      : topology_(topology),
        groups_(std::move(groups)),
        sub_chunks_(sub_chunks),
        group_of_(at(topology.servers)),
        fast_(at(topology.servers)) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const int s : groups_[g]) group_of_[at(s)] = static_cast<int>(g);
    }
  }

  /// Makes the forest. Its trees are empty if there is no ring, or no way inside a group.
  FlowForest make(std::int64_t fast, const Rng& rng) {
    std::vector<std::int64_t> left;
    for (const Topology::Link& link : topology_.links) left.push_back(link.capacity);
    for (std::size_t j = 0; j < groups_[0].size(); ++j) {
      std::vector<FlowRoute> ring = ring_of(topology_, groups_, j, left, rng.fork("group ring"));
      if (!ring.empty()) rings_.emplace_back(j, number(std::move(ring)));
    }
    FlowForest forest = {topology_.servers, sub_chunks_, {}, {}};
    if (rings_.empty() || !find_inner_ways(fast)) return forest;
    for (int chunk = 0; chunk < topology_.servers * sub_chunks_; ++chunk) {
      forest.trees.push_back(tree_of(chunk));
    }
    forest.routes = routes_.take();
    return forest;
  }

 private:
  struct Ring {
    std::vector<std::int32_t> into;  // by group: the hop that leads there
    std::vector<int> next;           // by group
  };

  Ring number(std::vector<FlowRoute> hops) {
    Ring ring = {std::vector<std::int32_t>(hops.size()), std::vector<int>(hops.size())};
    for (std::size_t g = 0; g < hops.size(); ++g) {
      ring.next[at(group_of_[at(hops[g].from)])] = static_cast<int>(g);
      ring.into[g] = routes_.number_of(hops[g].from, hops[g].to, std::move(hops[g].links));
    }
    return ring;
  }

  /// Finds single hops over links of at least `fast` units between all servers of each group.
  bool find_inner_ways(std::int64_t fast) {
    std::vector<std::int64_t> units;
    for (const Topology::Link& link : topology_.links) {
      units.push_back(link.capacity >= fast ? link.capacity : 0);
    }
    for (const std::vector<int>& group : groups_) {
      const FlowPart part = part_of(topology_, group, units);
      std::size_t found = 0;
      for (const FlowRoute& hop : shortest_hops(part.topology, 0, 1)) {
        FlowRoute route = part.whole(hop);
        const std::size_t pair = at(route.from) * at(topology_.servers) + at(route.to);
        if (!topology_.routes.empty() && topology_.routes[pair] != route.links) return false;
        fast_[at(route.from)][route.to] =
            routes_.number_of(route.from, route.to, std::move(route.links));
        ++found;
      }
      if (found != group.size() * (group.size() - 1)) return false;
    }
    return true;
  }

  FlowTree tree_of(int chunk) {
    const int owner = chunk / sub_chunks_;
    const std::vector<int>& home = groups_[at(group_of_[at(owner)])];
    const auto place =
        static_cast<std::size_t>(std::find(home.begin(), home.end(), owner) - home.begin());
    // If there is a ring for every place, each takes what its own servers have; else rings share
    // evenly.
    const std::size_t turn =
        rings_.size() == home.size() ? place : place * at(sub_chunks_) + at(chunk % sub_chunks_);
    const auto& [member, ring] = rings_[turn % rings_.size()];
    FlowTree tree = {chunk, {}, std::vector<std::int32_t>(at(topology_.servers), -1)};
    spread(tree, owner);
    for (int g = ring.next[at(group_of_[at(owner)])]; g != group_of_[at(owner)];
         g = ring.next[at(g)]) {
      const int first = groups_[at(g)][member];
      tree.down[at(first)] = ring.into[at(g)];
      spread(tree, first);
    }
    tree.up = tree.down;
    return tree;
  }

  void spread(FlowTree& tree, int from) {
    for (const int s : groups_[at(group_of_[at(from)])]) {
      if (s != from) tree.down[at(s)] = fast_[at(from)].at(s);
    }
  }

  const Topology& topology_;
  Groups groups_;
  int sub_chunks_;
  std::vector<int> group_of_;                        // by server
  std::vector<std::map<int, std::int32_t>> fast_;    // by server, server: route
  std::vector<std::pair<std::size_t, Ring>> rings_;  // place in the groups, ring
  RouteTable routes_;
};

}  // namespace

std::vector<FlowForest> group_forests(const Topology& topology, int sub_chunks, const Rng& rng) {
  std::set<std::int64_t> capacities;
  for (const Topology::Link& link : topology.links) capacities.insert(link.capacity);
  std::vector<FlowForest> forests;
  std::set<Groups> tried;
  for (const std::int64_t fast : capacities) {
    Groups groups = groups_of(topology, fast);
    if (groups.empty() || !tried.insert(groups).second) continue;
    FlowForest forest = GroupForest(topology, std::move(groups), sub_chunks).make(fast, rng);
    if (!forest.trees.empty()) forests.push_back(std::move(forest));
  }
  return forests;
}

}  // namespace agpcs
