// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/hops.h"

#include "ir/base/rng.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace agpcs {
namespace {

/// Searches breadth first from one server over switches, and finds the shortest ways back to it.
class Reach {
 public:
  explicit Reach(const Topology& topology)
      : topology_(topology),
        out_(static_cast<std::size_t>(topology.nodes())),
        distance_(out_.size()),
        before_(out_.size()) {
    for (int l = 0; l < static_cast<int>(topology.links.size()); ++l) {
      out_[static_cast<std::size_t>(topology.links[static_cast<std::size_t>(l)].from)].push_back(l);
    }
  }

  /// Returns servers reached from `from`, near ones first, then by number. There are at least
  /// `nearest` of them, and all that are as near as the last.
  std::vector<int> servers_from(int from, std::size_t nearest) {
    std::fill(distance_.begin(), distance_.end(), -1);
    for (std::vector<int>& links : before_) links.clear();
    distance_[static_cast<std::size_t>(from)] = 0;
    std::vector<int> level = {from}, reached;
    for (int depth = 1; !level.empty() && (nearest == 0 || reached.size() < nearest); ++depth) {
      level = next_level(level, depth);
      std::vector<int> servers;
      for (const int node : level) {
        if (topology_.is_server(node)) servers.push_back(node);
      }
      std::sort(servers.begin(), servers.end());
      reached.insert(reached.end(), servers.begin(), servers.end());
    }
    return reached;
  }

  /// Returns a shortest way to `to`; `draw` chooses among several.
  FlowRoute way(int from, int to, std::uint64_t draw) const {
    FlowRoute route = {from, to, {}};
    for (int at = to; at != from;) {
      const std::vector<int>& links = before_[static_cast<std::size_t>(at)];
      const int link =
          links[stable_hash("hop", draw + static_cast<std::uint64_t>(at)) % links.size()];
      route.links.push_back(link);
      at = topology_.links[static_cast<std::size_t>(link)].from;
    }
    std::reverse(route.links.begin(), route.links.end());
    return route;
  }

 private:
  std::vector<int> next_level(const std::vector<int>& level, int depth) {
    std::vector<int> next;
    for (const int node : level) {
      if (depth > 1 && topology_.is_server(node)) continue;  // servers do not forward
      for (const int l : out_[static_cast<std::size_t>(node)]) {
        const int to = topology_.links[static_cast<std::size_t>(l)].to;
        int& distance = distance_[static_cast<std::size_t>(to)];
        if (distance < 0) {
          distance = depth;
          next.push_back(to);
        }
        if (distance == depth) before_[static_cast<std::size_t>(to)].push_back(l);
      }
    }
    return next;
  }

  const Topology& topology_;
  std::vector<std::vector<int>> out_;     // by node: links
  std::vector<int> distance_;             // by node; -1 if it was not reached
  std::vector<std::vector<int>> before_;  // by node: last links of shortest ways
};

std::vector<FlowRoute> own_routes(const Topology& topology) {
  std::vector<FlowRoute> hops;
  for (int from = 0; from < topology.servers; ++from) {
    const auto first = static_cast<std::ptrdiff_t>(hops.size());
    for (int to = 0; to < topology.servers; ++to) {
      if (to == from) continue;
      const auto pair =
          static_cast<std::size_t>(from) * static_cast<std::size_t>(topology.servers) +
          static_cast<std::size_t>(to);
      hops.push_back({from, to, topology.routes[pair]});
    }
    std::stable_sort(hops.begin() + first, hops.end(),
                     [](const auto& a, const auto& b) { return a.links.size() < b.links.size(); });
  }
  return hops;
}

}  // namespace

std::vector<FlowRoute> shortest_hops(const Topology& topology, int nearest, int alternatives) {
  if (!topology.routes.empty()) return own_routes(topology);
  std::vector<FlowRoute> hops;
  Reach reach(topology);
  for (int from = 0; from < topology.servers; ++from) {
    for (const int to : reach.servers_from(from, static_cast<std::size_t>(nearest))) {
      std::vector<FlowRoute> ways;
      for (int a = 0; a < 4 * alternatives && static_cast<int>(ways.size()) < alternatives; ++a) {
        const std::uint64_t draw = stable_hash("way", static_cast<std::uint64_t>(from) * 65'536 +
                                                          static_cast<std::uint64_t>(to)) +
                                   977 * static_cast<std::uint64_t>(a);
        FlowRoute way = reach.way(from, to, draw);
        const auto same = [&](const FlowRoute& other) { return other.links == way.links; };
        if (std::none_of(ways.begin(), ways.end(), same)) ways.push_back(std::move(way));
      }
      hops.insert(hops.end(), ways.begin(), ways.end());
    }
  }
  return hops;
}

}  // namespace agpcs
