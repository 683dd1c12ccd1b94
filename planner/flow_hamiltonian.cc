// SPDX-License-Identifier: Apache-2.0
#include "ir/rng.h"
#include "planner/flow_methods.h"
#include "planner/hops.h"
#include "planner/list_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kAttempts = 16;            // each from another server
constexpr int kRotationsPerServer = 32;  // in one attempt
constexpr int kAllHops = 256;            // servers up to which all hops are looked at
constexpr int kNearHops = 64;            // of each server, above that

/// Rotation and extension (Posa, 1976): the path grows at its end; where it cannot, the part behind
/// one of its servers is turned round, which gives another end. All hops of the path fit on the
/// links together.
class RingSearch {
 public:
  RingSearch(const Topology& topology, Rng rng)
      : topology_(topology),
        hops_(shortest_hops(topology, topology.servers <= kAllHops ? 0 : kNearHops, 4)),
        out_(static_cast<std::size_t>(topology.servers)),
        rng_(rng) {
    for (std::size_t h = 0; h < hops_.size(); ++h) {
      out_[static_cast<std::size_t>(hops_[h].from)].push_back(static_cast<int>(h));
      between_[{hops_[h].from, hops_[h].to}].push_back(static_cast<int>(h));
    }
  }

  /// The hops of the ring in order; none: not found.
  std::vector<FlowRoute> find() {
    std::vector<FlowRoute> ring;
    if (!attempt()) return ring;
    for (const int h : taken_) ring.push_back(hops_[static_cast<std::size_t>(h)]);
    return ring;
  }

 private:
  bool attempt() {
    left_.clear();
    for (const Topology::Link& link : topology_.links) left_.push_back(link.capacity);
    place_.assign(static_cast<std::size_t>(topology_.servers), -1);
    path_.clear();
    taken_.clear();
    append(static_cast<int>(rng_.below(static_cast<std::uint64_t>(topology_.servers))));
    int rotations = kRotationsPerServer * topology_.servers;
    for (;;) {
      if (extend()) continue;
      if (static_cast<int>(path_.size()) == topology_.servers &&
          take_between(path_.back(), path_[0])) {
        return true;
      }
      while (rotations > 0 && !rotate()) --rotations;
      if (rotations-- <= 0) return false;
    }
  }

  bool fits(int hop) const {
    const std::vector<int>& links = hops_[static_cast<std::size_t>(hop)].links;
    return std::all_of(links.begin(), links.end(),
                       [&](int l) { return left_[static_cast<std::size_t>(l)] > 0; });
  }
  void load(int hop, std::int64_t units) {
    for (const int l : hops_[static_cast<std::size_t>(hop)].links) {
      left_[static_cast<std::size_t>(l)] -= units;
    }
  }
  void append(int server) {
    place_[static_cast<std::size_t>(server)] = static_cast<int>(path_.size());
    path_.push_back(server);
  }
  bool take(int hop) {
    if (!fits(hop)) return false;
    load(hop, 1);
    taken_.push_back(hop);
    return true;
  }
  bool take_between(int from, int to) {
    const auto found = between_.find({from, to});
    return found != between_.end() && std::any_of(found->second.begin(), found->second.end(),
                                                  [&](int hop) { return take(hop); });
  }

  // To a server that is not on the path, over as few links as can be, else as drawn.
  bool extend() {
    const std::vector<int>& out = out_[static_cast<std::size_t>(path_.back())];
    int best = -1;
    std::uint64_t seen = 0;
    for (const int hop : out) {
      const FlowRoute& route = hops_[static_cast<std::size_t>(hop)];
      if (best >= 0 && route.links.size() > hops_[static_cast<std::size_t>(best)].links.size()) {
        break;  // hops come in order of links
      }
      if (place_[static_cast<std::size_t>(route.to)] >= 0 || !fits(hop)) continue;
      if (rng_.below(++seen) == 0) best = hop;
    }
    if (best < 0) return false;
    take(best);
    append(hops_[static_cast<std::size_t>(best)].to);
    return true;
  }

  // With server u drawn: ... u -> v ... end becomes ... u -> end ... v.
  bool rotate() {
    if (path_.size() < 3) return false;
    const auto u = static_cast<std::size_t>(rng_.below(path_.size() - 2));
    const std::vector<int> hops_before(taken_.begin() + static_cast<std::ptrdiff_t>(u),
                                       taken_.end());
    for (const int hop : hops_before) load(hop, -1);
    taken_.resize(u);
    bool turned = take_between(path_[u], path_.back());
    for (std::size_t i = path_.size() - 1; turned && i > u + 1; --i) {
      turned = take_between(path_[i], path_[i - 1]);
    }
    if (turned) {
      std::reverse(path_.begin() + static_cast<std::ptrdiff_t>(u) + 1, path_.end());
      for (std::size_t i = u + 1; i < path_.size(); ++i) {
        place_[static_cast<std::size_t>(path_[i])] = static_cast<int>(i);
      }
      return true;
    }
    for (std::size_t i = u; i < taken_.size(); ++i) load(taken_[i], -1);
    taken_.resize(u);
    for (const int hop : hops_before) take(hop);
    return false;
  }

  const Topology& topology_;
  std::vector<FlowRoute> hops_;
  std::vector<std::vector<int>> out_;                        // by server: hops
  std::map<std::pair<int, int>, std::vector<int>> between_;  // hops
  Rng rng_;
  std::vector<std::int64_t> left_;  // by link: units
  std::vector<int> path_, place_;   // servers; by server: place on the path
  std::vector<int> taken_;          // hops of the path
};

/// Every chunk goes round the ring, to its owner first, from its owner then.
FlowForest ring_forest(const std::vector<FlowRoute>& ring) {
  const auto servers = ring.size();
  FlowForest forest = {static_cast<int>(servers), 1, ring, {}};
  for (std::size_t owner = 0; owner < servers; ++owner) {
    FlowTree& tree = forest.trees.emplace_back(FlowTree{static_cast<int>(owner),
                                                        std::vector<std::int32_t>(servers, -1),
                                                        std::vector<std::int32_t>(servers, -1)});
    for (std::size_t h = 0; h < servers; ++h) {
      const auto from = static_cast<std::size_t>(ring[h].from);
      const auto to = static_cast<std::size_t>(ring[h].to);
      if (from != owner) tree.up[from] = static_cast<std::int32_t>(h);
      if (to != owner) tree.down[to] = static_cast<std::int32_t>(h);
    }
  }
  return forest;
}

}  // namespace

Result<FlowSchedule> schedule_hamiltonian(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  const Rng rng = Rng(options.seed).fork("hamiltonian");
  RingSearch search(topology, rng.fork("search"));
  const std::int64_t attempts = kAttempts * std::max<std::int64_t>(1, options.effort);
  for (std::int64_t a = 0; a < attempts; ++a) {
    if (options.interrupted != nullptr && options.interrupted->load()) break;
    const std::vector<FlowRoute> ring = search.find();
    if (ring.empty()) continue;
    return list_schedule(topology, ring_forest(ring), options.barrier, ListOrder::kFirstCome,
                         rng.fork("order"));
  }
  return Status(StatusCode::kInfeasible,
                fmt::format("topology '{}': no ring of hops that share no link was found in {} "
                            "attempts\n  hint: ring needs none",
                            topology.name, attempts));
}

}  // namespace agpcs
