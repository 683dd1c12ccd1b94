// SPDX-License-Identifier: Apache-2.0
#include "ir/base/shuffle.h"
#include "planner/flows/trees/forests.h"
#include "planner/flows/trees/tree_packing.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kSteps = 4096;  // most steps in which a switch's units are joined

/// A number for every pair of incoming and outgoing neighbours of a switch.
using Matrix = std::vector<std::vector<std::int64_t>>;

/// Joins `in[i]` incoming units with `out[j]` outgoing ones evenly. Pairs that `same` gives as one
/// node get none. Units may be left over.
class EvenJoin {
 public:
  EvenJoin(std::vector<std::int64_t> in, std::vector<std::int64_t> out, std::vector<int> same,
           Rng rng)
      : in_(std::move(in)),
        out_(std::move(out)),
        same_(std::move(same)),
        rng_(rng),
        pairs_(in_.size(), std::vector<std::int64_t>(out_.size(), 0)) {}

  Matrix run() {
    const std::int64_t total = std::accumulate(in_.begin(), in_.end(), std::int64_t{0});
    const std::int64_t step = std::max<std::int64_t>(1, total / kSteps);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < in_.size(); ++i) {
        if (in_[i] == 0) continue;
        const int j = fullest(i);
        if (j >= 0) {
          join(i, static_cast<std::size_t>(j), std::min(step, in_[i]));
          moved = true;
        } else {
          moved = moved || exchange(i);
        }
      }
    }
    return std::move(pairs_);
  }

 private:
  // Returns the neighbour with the most units left among those joined least with i. Among equal
  // ones it is the first from a drawn place.
  int fullest(std::size_t i) {
    int best = -1;
    std::int64_t most = 0;
    const std::size_t first = rng_.below(out_.size());
    for (std::size_t step = 0; step < out_.size(); ++step) {
      const std::size_t j = (first + step) % out_.size();
      if (out_[j] == 0 || same_[i] == static_cast<int>(j)) continue;
      if (best >= 0 && out_[j] - pairs_[i][j] <= most) continue;
      best = static_cast<int>(j);
      most = out_[j] - pairs_[i][j];
    }
    return best;
  }

  void join(std::size_t i, std::size_t j, std::int64_t wanted) {
    const std::int64_t units = std::min(wanted, out_[j]);
    pairs_[i][j] += units;
    in_[i] -= units;
    out_[j] -= units;
  }

  // Handles the case that only i's own way out is left: another pair (k, l) gives way to (k, own)
  // and (i, l).
  bool exchange(std::size_t i) {
    const int own = same_[i];
    if (own < 0 || out_[static_cast<std::size_t>(own)] == 0) return false;
    const auto o = static_cast<std::size_t>(own);
    for (std::size_t k = 0; k < in_.size(); ++k) {
      if (k == i || same_[k] == own) continue;
      for (std::size_t l = 0; l < out_.size(); ++l) {
        if (l == o || pairs_[k][l] == 0) continue;
        const std::int64_t units = std::min({pairs_[k][l], in_[i], out_[o]});
        pairs_[k][l] -= units;
        pairs_[k][o] += units;
        pairs_[i][l] += units;
        in_[i] -= units;
        out_[o] -= units;
        return true;
      }
    }
    return false;
  }

  std::vector<std::int64_t> in_, out_;  // units left
  std::vector<int> same_;               // by incoming neighbour: the same as outgoing one, or -1
  Rng rng_;
  Matrix pairs_;
};

class SwitchSplitter {
 public:
  SwitchSplitter(const Topology& topology, std::int64_t rounds, Rng rng)
      : topology_(topology), rng_(rng) {
    lanes_.resize(static_cast<std::size_t>(topology.nodes()));
    for (std::size_t l = 0; l < topology.links.size(); ++l) {
      const Topology::Link& link = topology.links[l];
      add({link.from, link.to, rounds * link.capacity, {static_cast<int>(l)}});
    }
  }

  std::vector<Lane> run() {
    std::vector<int> switches(static_cast<std::size_t>(topology_.switches));
    std::iota(switches.begin(), switches.end(), topology_.servers);
    shuffle(switches, rng_);
    // Those that join many come last: their lanes are many.
    std::stable_sort(switches.begin(), switches.end(),
                     [&](int a, int b) { return servers_beside(a) < servers_beside(b); });
    for (const int node : switches) split(node);
    std::vector<Lane> lanes;
    for (std::vector<Lane>& of_node : lanes_) {
      for (Lane& lane : of_node) {
        std::vector<FlowRoute> hop = hops_of(topology_, lane.links);
        lane.links = std::move(hop.front().links);
        lanes.push_back(std::move(lane));
      }
    }
    return lanes;
  }

 private:
  void add(Lane lane) { lanes_[static_cast<std::size_t>(lane.from)].push_back(std::move(lane)); }
  std::int64_t servers_beside(int node) const {
    const auto& of_node = lanes_[static_cast<std::size_t>(node)];
    return std::count_if(of_node.begin(), of_node.end(),
                         [&](const Lane& lane) { return topology_.is_server(lane.to); });
  }

  /// Lanes by the neighbour at their other end.
  using ByNeighbour = std::map<int, std::vector<Lane>>;

  void split(int node) {
    ByNeighbour in, out;
    for (Lane& lane : lanes_[static_cast<std::size_t>(node)])
      out[lane.to].push_back(std::move(lane));
    lanes_[static_cast<std::size_t>(node)].clear();
    for (std::vector<Lane>& of_node : lanes_) {
      const auto kept = std::stable_partition(of_node.begin(), of_node.end(),
                                              [&](const Lane& lane) { return lane.to != node; });
      for (auto lane = kept; lane != of_node.end(); ++lane) in[lane->from].push_back(*lane);
      of_node.erase(kept, of_node.end());
    }
    std::vector<int> same;
    for (const auto& [from, unused] : in) {
      const auto found = out.find(from);
      same.push_back(found == out.end() ? -1 : static_cast<int>(std::distance(out.begin(), found)));
    }
    const Matrix pairs = EvenJoin(units_of(in), units_of(out), same, Rng(rng_.next())).run();
    std::size_t i = 0;
    for (auto& [from, incoming] : in) {
      std::size_t j = 0;
      for (auto& [to, outgoing] : out) connect(incoming, outgoing, pairs[i][j++]);
      ++i;
    }
  }

  static std::vector<std::int64_t> units_of(const ByNeighbour& lanes) {
    std::vector<std::int64_t> units;
    for (const auto& [node, of_node] : lanes) {
      units.push_back(0);
      for (const Lane& lane : of_node) units.back() += lane.units;
    }
    return units;
  }

  // Joins `units` of both sides; lanes that are used up leave.
  void connect(std::vector<Lane>& incoming, std::vector<Lane>& outgoing, std::int64_t units) {
    while (units > 0) {
      Lane& a = incoming.back();
      Lane& b = outgoing.back();
      const std::int64_t both = std::min({units, a.units, b.units});
      Lane lane = {a.from, b.to, both, a.links};
      lane.links.insert(lane.links.end(), b.links.begin(), b.links.end());
      add(std::move(lane));
      units -= both;
      a.units -= both;
      b.units -= both;
      if (a.units == 0) incoming.pop_back();
      if (b.units == 0) outgoing.pop_back();
    }
  }

  const Topology& topology_;
  Rng rng_;
  std::vector<std::vector<Lane>> lanes_;  // by the node where they begin
};

/// Returns lanes in which every route takes the same part of the units of its fullest link.
std::vector<Lane> lanes_of_routes(const Topology& topology, std::int64_t rounds) {
  std::vector<std::int64_t> routes_over(topology.links.size(), 0);
  for (const std::vector<int>& route : topology.routes) {
    for (const int l : route) ++routes_over[static_cast<std::size_t>(l)];
  }
  std::vector<Lane> lanes;
  for (int from = 0; from < topology.servers; ++from) {
    for (int to = 0; to < topology.servers; ++to) {
      if (from == to) continue;
      const auto& links =
          topology
              .routes[static_cast<std::size_t>(from) * static_cast<std::size_t>(topology.servers) +
                      static_cast<std::size_t>(to)];
      std::int64_t units = INT64_MAX;
      for (const int l : links) {
        const auto link = static_cast<std::size_t>(l);
        units = std::min(units, rounds * topology.links[link].capacity / routes_over[link]);
      }
      if (units > 0) lanes.push_back({from, to, units, links});
    }
  }
  return lanes;
}

/// Lets pairs of servers take units of the links of their hops in turn, near ones more often.
class ShortLanes {
 public:
  ShortLanes(const Topology& topology, const std::vector<FlowRoute>& hops, std::int64_t rounds,
             int nearness, Rng rng)
      : hops_(hops), units_(hops_.size(), 0), nearness_(nearness), rng_(rng) {
    for (const Topology::Link& link : topology.links) left_.push_back(rounds * link.capacity);
    for (std::size_t h = 0; h < hops_.size(); ++h) {
      longest_ = std::max(longest_, hops_[h].links.size());
      if (h == 0 || hops_[h].from != hops_[h - 1].from || hops_[h].to != hops_[h - 1].to) {
        pairs_.push_back({h, h});
      }
      ++pairs_.back().second;
    }
  }

  std::vector<Lane> run() {
    std::vector<std::pair<std::size_t, std::size_t>> open = pairs_;
    while (!open.empty()) {
      shuffle(open, rng_);
      const auto full = [&](const auto& pair) { return !take(pair.first, pair.second); };
      open.erase(std::remove_if(open.begin(), open.end(), full), open.end());
    }
    std::vector<Lane> lanes;
    for (std::size_t h = 0; h < hops_.size(); ++h) {
      if (units_[h] == 0) continue;
      lanes.push_back({hops_[h].from, hops_[h].to, units_[h], hops_[h].links});
    }
    return lanes;
  }

 private:
  // Returns whether the pair whose ways are [first, last) got all it wanted.
  bool take(std::size_t first, std::size_t last) {
    const std::size_t links = hops_[first].links.size();
    std::size_t wanted = 1;
    for (int i = 0; i < nearness_; ++i) wanted = wanted * longest_ / links;
    for (std::size_t unit = 0; unit < wanted; ++unit) {
      const std::size_t way = widest(first, last);
      if (way == last) return false;
      for (const int l : hops_[way].links) --left_[static_cast<std::size_t>(l)];
      ++units_[way];
    }
    return true;
  }

  // Returns the way with the most units left, or `last` if all are full.
  std::size_t widest(std::size_t first, std::size_t last) const {
    std::size_t best = last;
    std::int64_t most = 0;
    for (std::size_t h = first; h < last; ++h) {
      std::int64_t least = INT64_MAX;
      for (const int l : hops_[h].links) {
        least = std::min(least, left_[static_cast<std::size_t>(l)]);
      }
      if (least <= most) continue;
      most = least;
      best = h;
    }
    return best;
  }

  const std::vector<FlowRoute>& hops_;  // by from, links, to: the ways of a pair follow each other
  std::vector<std::int64_t> units_, left_;  // by hop; by link
  int nearness_;
  Rng rng_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;  // the hops of each, [first, last)
  std::size_t longest_ = 1;
};

}  // namespace

std::vector<Lane> short_lanes(const Topology& topology, const std::vector<FlowRoute>& hops,
                              std::int64_t rounds, int nearness, Rng rng) {
  return ShortLanes(topology, hops, rounds, nearness, rng).run();
}

std::vector<Lane> split_switches(const Topology& topology, std::int64_t rounds, Rng rng) {
  if (!topology.routes.empty()) return lanes_of_routes(topology, rounds);
  return SwitchSplitter(topology, rounds, rng).run();
}

}  // namespace agpcs
