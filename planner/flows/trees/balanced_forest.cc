// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/trees/balanced_forest.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "ir/base/shuffle.h"
#include "planner/flows/hops.h"
#include "planner/flows/trees/forests.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <queue>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kNearHops = 24;      // hops to a server that balancing tries
constexpr int kAlternatives = 3;   // ways between two servers
constexpr int kAllHopsUpTo = 160;  // most servers with all hops; more have hops to near ones only
constexpr double kDepthWeight = 0.05;

/// The hops of a topology, by the server that they leave and by the one that they enter.
struct Hops {
  std::vector<FlowRoute> routes;
  std::vector<std::vector<int>> out, in;  // by server: routes; near ones first

  explicit Hops(const Topology& topology, int nearest)
      : routes(shortest_hops(topology, nearest, kAlternatives)),
        out(at(topology.servers)),
        in(at(topology.servers)) {
    for (int r = 0; r < static_cast<int>(routes.size()); ++r) {
      out[at(routes[at(r)].from)].push_back(r);
      in[at(routes[at(r)].to)].push_back(r);
    }
    for (std::vector<int>& into : in) {
      // Wide and short hops come first; a hash spreads those that are alike.
      const auto key = [&](int r) {
        const FlowRoute& route = routes[at(r)];
        double slowness = 0;
        for (const int l : route.links) {
          slowness += 1 / static_cast<double>(topology.links[at(l)].capacity);
        }
        return std::tuple(slowness, stable_hash("near", static_cast<std::uint64_t>(r)), r);
      };
      std::vector<std::tuple<double, std::uint64_t, int>> keys;
      for (const int r : into) keys.push_back(key(r));
      std::sort(keys.begin(), keys.end());
      for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::get<2>(keys[i]);
    }
  }
};

/// Runs Dijkstra's algorithm over servers by number of links, and draws among hops that are as
/// good. Empty if some server is out of reach.
std::vector<std::int32_t> shortest_tree(const Hops& hops, int root, std::uint64_t draw) {
  const std::size_t n = hops.out.size();
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> distance(n, kFar);
  std::vector<std::uint64_t> drawn(n, 0);
  std::vector<std::int32_t> parent(n, -1);
  std::priority_queue<std::pair<std::int64_t, int>, std::vector<std::pair<std::int64_t, int>>,
                      std::greater<>>
      queue;
  distance[at(root)] = 0;
  queue.emplace(0, root);
  std::size_t reached = 0;
  while (!queue.empty()) {
    const auto [far, server] = queue.top();
    queue.pop();
    if (far != distance[at(server)]) continue;
    ++reached;
    distance[at(server)] = far;
    for (const int r : hops.out[at(server)]) {
      const FlowRoute& route = hops.routes[at(r)];
      const std::int64_t there = far + static_cast<std::int64_t>(route.links.size());
      const std::uint64_t lot = stable_hash("parent", draw + static_cast<std::uint64_t>(r));
      const std::size_t to = at(route.to);
      if (there > distance[to] || (there == distance[to] && lot <= drawn[to])) continue;
      if (there < distance[to]) queue.emplace(there, route.to);
      distance[to] = there;
      drawn[to] = lot;
      parent[to] = r;
    }
  }
  parent[at(root)] = -1;
  if (reached < n) return {};
  return parent;
}

/// Moves parents of servers in trees as long as that lowers the sum over links of capacity x (load
/// / capacity / ideal)^8, with a small price on depth.
class Balancer {
 public:
  /// `backs`: by route, the one that leads back, whose links count too; empty if there are none.
  Balancer(const Topology& topology, const Hops& hops, const std::vector<FlowRoute>& backs,
           FlowForest& forest)
      : hops_(hops), forest_(forest), load_(topology.links.size(), 0) {
    for (std::size_t r = 0; r < hops.routes.size(); ++r) {
      links_.push_back(hops.routes[r].links);
      if (backs.empty()) continue;
      links_[r].insert(links_[r].end(), backs[r].links.begin(), backs[r].links.end());
    }
    double ideal = 1;
    std::vector<double> into(at(topology.nodes()), 0);
    for (const Topology::Link& link : topology.links) {
      inverse_.push_back(1 / static_cast<double>(link.capacity));
      into[at(link.to)] += static_cast<double>(link.capacity);
    }
    const double chunks = static_cast<double>(forest.sub_chunks) * (forest.servers - 1);
    for (int s = 0; s < topology.servers; ++s) ideal = std::max(ideal, chunks / into[at(s)]);
    ideal_ = 1 / ideal;
    depth_price_ = kDepthWeight * 56 * ideal_ * ideal_;
    for (const FlowTree& tree : forest.trees) {
      for (const std::int32_t r : tree.down) add(r, 1);
    }
  }

  void run(int sweeps, Rng rng) {
    std::vector<std::pair<int, int>> order;
    for (int t = 0; t < static_cast<int>(forest_.trees.size()); ++t) {
      for (int s = 0; s < forest_.servers; ++s) {
        if (s != t / forest_.sub_chunks) order.emplace_back(t, s);
      }
    }
    shuffle(order, rng);
    for (int sweep = 0; sweep < sweeps; ++sweep) {
      std::size_t moved = 0;
      for (const auto& [tree, server] : order) {
        moved += better_parent(tree, server) || above_its_parent(tree, server) ? 1 : 0;
      }
      if (moved * 1000 <= order.size()) break;
    }
  }

 private:
  void add(std::int32_t route, int units) {
    if (route < 0) return;
    for (const int l : links_[at(route)]) load_[at(l)] += units;
  }

  static double eighth(double x) {
    x *= x;
    x *= x;
    return x * x;
  }

  /// Returns the cost of one more unit on each link of the route.
  double price(std::int32_t route) const {
    double sum = 0;
    for (const int l : links_[at(route)]) {
      const double scale = inverse_[at(l)] * ideal_, load = static_cast<double>(load_[at(l)]);
      sum += (eighth((load + 1) * scale) - eighth(load * scale)) / inverse_[at(l)];
    }
    return sum;
  }

  /// Returns the hops from the root to `server`, or -1 if the way leads through `without`.
  int depth(const FlowTree& tree, int server, int without) const {
    int hops = 0;
    for (std::int32_t r = tree.down[at(server)];; r = tree.down[at(server)], ++hops) {
      if (server == without) return -1;
      if (r < 0) return hops;
      server = hops_.routes[at(r)].from;
    }
  }

  bool better_parent(int t, int server) {
    FlowTree& tree = forest_.trees[at(t)];
    const std::int32_t old = tree.down[at(server)];
    add(old, -1);
    std::int32_t best = old;
    double least = price(old) + depth_price_ * depth(tree, hops_.routes[at(old)].from, -1);
    for (const int r : near(server)) {
      double cost = price(r);
      if (cost >= least) continue;
      const int far = depth(tree, hops_.routes[at(r)].from, server);
      cost += depth_price_ * far;
      if (far < 0 || cost >= least - 1e-9) continue;
      least = cost;
      best = r;
    }
    tree.down[at(server)] = best;
    add(best, 1);
    return best != old;
  }

  /// Swaps server and parent: the server gets a new parent, and its old parent hangs on it.
  bool above_its_parent(int t, int server) {
    FlowTree& tree = forest_.trees[at(t)];
    const std::int32_t old = tree.down[at(server)];
    const int parent = hops_.routes[at(old)].from;
    const std::int32_t above = tree.down[at(parent)];
    if (above < 0) return false;
    add(old, -1);
    add(above, -1);
    const double now = price(old) + price(above);
    std::int32_t turned = -1, taken = -1;
    double turned_price = now, taken_price = now;
    for (const int r : near(parent)) {
      if (hops_.routes[at(r)].from != server || price(r) >= turned_price) continue;
      turned = r;
      turned_price = price(r);
    }
    for (const int r : near(server)) {
      if (turned < 0 || turned_price + price(r) >= now - 1e-9 || price(r) >= taken_price) continue;
      if (depth(tree, hops_.routes[at(r)].from, parent) < 0) continue;
      taken = r;
      taken_price = price(r);
    }
    if (taken >= 0) {
      tree.down[at(server)] = taken;
      tree.down[at(parent)] = turned;
    }
    add(tree.down[at(server)], 1);
    add(tree.down[at(parent)], 1);
    return taken >= 0;
  }

  std::span<const int> near(int server) const {
    const std::vector<int>& into = hops_.in[at(server)];
    return std::span(into).first(std::min<std::size_t>(into.size(), kNearHops));
  }

  const Hops& hops_;
  FlowForest& forest_;
  std::vector<std::vector<int>> links_;  // by route
  std::vector<std::int64_t> load_;       // by link
  std::vector<double> inverse_;          // by link: 1 / capacity
  double ideal_ = 1;                     // 1 / rounds that the narrowest server needs
  double depth_price_ = 0;
};

/// Returns, by route, the one that leads back: the topology's own, or over the twins of its links.
/// Empty if there is neither.
std::vector<FlowRoute> backs_of(const Topology& topology, const std::vector<FlowRoute>& routes) {
  const bool twins = has_equal_twins(topology);
  if (!twins && topology.routes.empty()) return {};
  std::vector<FlowRoute> backs;
  for (const FlowRoute& route : routes) {
    FlowRoute& back = backs.emplace_back(FlowRoute{route.to, route.from, {}});
    for (auto l = route.links.rbegin(); twins && l != route.links.rend(); ++l) {
      back.links.push_back(*l ^ 1);
    }
    if (!twins) back.links = topology.routes[at(route.to) * at(topology.servers) + at(route.from)];
  }
  return backs;
}

FlowForest down_forest(const Topology& topology, const ForestOptions& options) {
  FlowForest forest = {topology.servers, options.sub_chunks, {}, {}};
  bool complete = false;
  for (int nearest = topology.servers <= kAllHopsUpTo ? 0 : kNearHops; !complete; nearest = 0) {
    const Hops hops(topology, nearest);
    forest.trees.clear();
    complete = true;
    for (int t = 0; complete && t < topology.servers * options.sub_chunks; ++t) {
      const std::uint64_t draw =
          stable_hash("tree", options.seed * 1'000'003 + static_cast<std::uint64_t>(t));
      FlowTree tree = {t, {}, shortest_tree(hops, t / options.sub_chunks, draw)};
      complete = !tree.down.empty();
      forest.trees.push_back(std::move(tree));
    }
    AGPCS_CHECK(complete || nearest > 0, "a server of '{}' is out of reach", topology.name);
    if (!complete) continue;
    if (options.kind == ForestKind::kBalanced) {
      const std::vector<FlowRoute> backs =
          options.overlapped ? backs_of(topology, hops.routes) : std::vector<FlowRoute>();
      Balancer(topology, hops, backs, forest)
          .run(options.sweeps, Rng(options.seed).fork("balance"));
    }
    forest.routes = hops.routes;
  }
  for (FlowTree& tree : forest.trees) tree.up = tree.down;
  return forest;
}

}  // namespace

FlowForest make_forest(const Topology& topology, const ForestOptions& options, bool both) {
  FlowForest forest = down_forest(topology, options);
  if (!both) return forest;
  const std::vector<FlowRoute> backs =
      options.overlapped ? backs_of(topology, forest.routes) : std::vector<FlowRoute>();
  if (!backs.empty()) {
    const auto first = static_cast<std::int32_t>(forest.routes.size());
    forest.routes.insert(forest.routes.end(), backs.begin(), backs.end());
    for (FlowTree& tree : forest.trees) {
      for (std::int32_t& route : tree.up) route += route < 0 ? 0 : first;
    }
    return forest;
  }
  if (!has_equal_twins(topology)) {
    return joined_both_ways(down_forest(reversed(topology), options), forest);
  }
  FlowForest back = forest;
  back.routes = on_twins(std::move(back.routes));
  return joined_both_ways(back, forest);
}

double heaviest_link(const Topology& topology, const FlowForest& forest, bool down) {
  std::vector<std::int64_t> load(topology.links.size(), 0);
  for (const FlowTree& tree : forest.trees) {
    for (const std::int32_t r : down ? tree.down : tree.up) {
      if (r < 0) continue;
      for (const int l : forest.routes[at(r)].links) ++load[at(l)];
    }
  }
  double most = 0;
  for (std::size_t l = 0; l < load.size(); ++l) {
    most = std::max(most,
                    static_cast<double>(load[l]) / static_cast<double>(topology.links[l].capacity));
  }
  return most;
}

}  // namespace agpcs
