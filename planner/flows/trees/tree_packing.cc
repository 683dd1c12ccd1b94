// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/trees/tree_packing.h"

#include "ir/base/check.h"
#include "ir/base/shuffle.h"
#include "planner/flows/max_flow.h"
#include "planner/flows/trees/forests.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// Lanes with the same ends, as one arc of a flow network. Its capacity is what is left of them.
class LaneNetwork {
 public:
  struct Pair {
    int from, to, arc;
    std::int64_t units, left;
    std::vector<std::size_t> lanes;  // lanes with units, the last one first
  };

  LaneNetwork(int servers, const std::vector<Lane>& lanes, int trees_of_root)
      : servers_(servers), network_(servers + 1) {
    std::map<std::pair<int, int>, std::size_t> numbers;
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      const auto [place, is_new] =
          numbers.emplace(std::pair(lanes[l].from, lanes[l].to), pairs_.size());
      if (is_new) pairs_.push_back({lanes[l].from, lanes[l].to, 0, 0, 0, {}});
      Pair& pair = pairs_[place->second];
      pair.units += lanes[l].units;
      pair.lanes.push_back(l);
    }
    for (Pair& pair : pairs_) {
      pair.left = pair.units;
      pair.arc = network_.add(pair.from, pair.to, pair.units);
    }
    network_.set_source(servers, true);
    for (int s = 0; s < servers; ++s) {
      waiting_arcs_.push_back(network_.add(servers, s, trees_of_root));
    }
    waiting_.assign(static_cast<std::size_t>(servers), trees_of_root);
    all_waiting_ = static_cast<std::int64_t>(servers) * trees_of_root;
  }

  std::vector<Pair>& pairs() { return pairs_; }

  void change_left(Pair& pair, std::int64_t by) {
    pair.left += by;
    network_.set_capacity(pair.arc, pair.left);
  }
  void change_waiting(int root, int by) {
    const auto r = static_cast<std::size_t>(root);
    waiting_[r] += by;
    all_waiting_ += by;
    network_.set_capacity(waiting_arcs_[r], waiting_[r]);
  }

  /// Returns a set of servers (by server) into which too few units lead for the trees that wait;
  /// empty if all of them fit on what is left.
  std::vector<bool> short_set() {
    std::vector<bool> set;
    for (int s = 0; set.empty() && s < servers_; ++s) {
      if (network_.run(s, all_waiting_) < all_waiting_) set = network_.sink_side();
      network_.set_source(s, true);  // sets with s inside have been looked at
    }
    for (int s = 0; s < servers_; ++s) network_.set_source(s, false);
    return set;
  }

  /// Returns whether a growing tree, which does not wait, can take a unit of `pair`: every set of
  /// servers with `to` inside and `from` outside has a unit to spare.
  bool can_spare(const Pair& pair) {
    network_.set_source(pair.from, true);
    const FlowAmount wanted = static_cast<FlowAmount>(all_waiting_) + 1;
    const bool can = network_.run(pair.to, wanted) == wanted;
    network_.set_source(pair.from, false);
    return can;
  }

  /// Returns the set of servers for which the last unit could not be spared.
  std::vector<bool> last_cut() const { return network_.sink_side(); }

 private:
  int servers_;
  MaxFlow network_;
  std::vector<Pair> pairs_;
  std::vector<int> waiting_arcs_, waiting_;  // by root: trees not begun
  std::int64_t all_waiting_;
};

constexpr int kQuickTries = 6;             // tries to grow a tree before every edge of it is tested
constexpr std::size_t kMostSets = 128;     // sets remembered as tight
constexpr std::size_t kMostTogether = 64;  // trees grown between two tests

class TreePacker {
 public:
  TreePacker(int servers, const std::vector<Lane>& lanes, int trees_of_root, Rng rng)
      : servers_(static_cast<std::size_t>(servers)),
        lanes_(lanes),
        network_(servers, lanes, trees_of_root),
        rng_(rng),
        out_(servers_) {
    forest_ = {servers, trees_of_root, {}, {}};
    for (const Lane& lane : lanes) left_.push_back(lane.units);
    for (std::size_t p = 0; p < network_.pairs().size(); ++p) {
      out_[static_cast<std::size_t>(network_.pairs()[p].from)].push_back(p);
    }
    for (int c = 0; c < servers * trees_of_root; ++c) {
      forest_.trees.push_back({c, {}, std::vector<std::int32_t>(servers_, -1)});
    }
  }

  FlowForest run() {
    for (int k = 0; k < forest_.sub_chunks; ++k) {
      std::vector<int> roots(servers_);
      for (std::size_t s = 0; s < servers_; ++s) roots[s] = static_cast<int>(s);
      shuffle(roots, rng_);
      for (const int root : roots) waiting_.push_back({root, root * forest_.sub_chunks + k, {}});
    }
    for (std::size_t first = 0; first < waiting_.size();) {
      const std::size_t last = std::min(first + together_, waiting_.size());
      const bool single = last - first == 1;
      const bool fit = grow_quickly(first, last);
      if (!fit && single) grow_carefully(waiting_[first]);
      if (fit || single) {
        for (std::size_t t = first; t < last; ++t) record(waiting_[t]);
        first = last;
      }
      together_ = fit ? std::min(2 * together_, kMostTogether) : (together_ + 1) / 2;
    }
    forest_.routes = routes_.take();
    return std::move(forest_);
  }

 private:
  using Pair = LaneNetwork::Pair;
  struct Tree {
    int root, chunk;
    std::vector<std::size_t> edges;  // pairs
  };

  // Grows trees [first, last), and avoids the sets of servers that were short of units so far.
  // Returns whether all other trees fit beside them; if not, takes them back.
  bool grow_quickly(std::size_t first, std::size_t last) {
    const auto trees = std::span(waiting_).subspan(first, last - first);
    for (int tries = trees.size() == 1 ? kQuickTries : 1; tries > 0; --tries) {
      bool complete = true;
      for (Tree& tree : trees) {
        network_.change_waiting(tree.root, -1);
        tree.edges = grow(tree.root, false);
        complete = complete && tree.edges.size() + 1 == servers_;
        for (const std::size_t p : tree.edges) network_.change_left(network_.pairs()[p], -1);
      }
      std::vector<bool> set;
      if (complete) set = network_.short_set();
      if (complete && set.empty()) return true;
      for (Tree& tree : trees) {
        network_.change_waiting(tree.root, 1);
        for (const std::size_t p : tree.edges) network_.change_left(network_.pairs()[p], 1);
      }
      if (!set.empty()) remember(set);
    }
    return false;
  }

  void grow_carefully(Tree& tree) {
    network_.change_waiting(tree.root, -1);
    tree.edges = grow(tree.root, true);
    AGPCS_CHECK(tree.edges.size() + 1 == servers_, "a tree of {} edges for {} servers",
                tree.edges.size(), servers_);
  }

  // The edge of more worth is taken first: one with much left, near the root.
  struct Edge {
    double worth;
    std::uint64_t drawn;
    std::size_t pair;
    int depth;
    bool operator<(const Edge& other) const {
      return std::tie(worth, drawn, pair) < std::tie(other.worth, other.drawn, other.pair);
    }
  };

  /// Returns the pairs of a tree. With `careful`, it takes them from what is left, and each only if
  /// all other trees still fit.
  std::vector<std::size_t> grow(int root, bool careful) {
    std::vector<bool> inside(servers_, false), entered(tight_sets_.size(), false);
    std::vector<std::vector<bool>> full;  // sets that the tree has entered and cannot enter again
    std::vector<std::size_t> edges;
    std::vector<Edge> heap;
    const auto enter = [&](int server, int depth) {
      inside[static_cast<std::size_t>(server)] = true;
      for (std::size_t t = 0; t < tight_sets_.size(); ++t) {
        if (tight_sets_[t][static_cast<std::size_t>(server)]) entered[t] = true;
      }
      for (const std::size_t p : out_[static_cast<std::size_t>(server)]) {
        const Pair& pair = network_.pairs()[p];
        if (pair.left == 0 || inside[static_cast<std::size_t>(pair.to)]) continue;
        const double part = static_cast<double>(pair.left) / static_cast<double>(pair.units);
        heap.push_back({part - 0.25 * depth, rng_.next(), p, depth});
        std::push_heap(heap.begin(), heap.end());
      }
    };
    enter(root, 0);
    while (!heap.empty() && edges.size() + 1 < servers_) {
      std::pop_heap(heap.begin(), heap.end());
      const Edge edge = heap.back();
      heap.pop_back();
      Pair& pair = network_.pairs()[edge.pair];
      if (inside[static_cast<std::size_t>(pair.to)]) continue;
      if (!careful && enters_again(pair, tight_sets_, entered)) continue;
      if (careful && enters_again(pair, full, std::vector<bool>(full.size(), true))) continue;
      if (careful && !network_.can_spare(pair)) {
        full.push_back(network_.last_cut());
        remember(full.back());
        continue;
      }
      if (careful) network_.change_left(pair, -1);
      edges.push_back(edge.pair);
      enter(pair.to, edge.depth + 1);
    }
    return edges;
  }

  void remember(const std::vector<bool>& set) {
    const bool is_new = std::count(tight_sets_.begin(), tight_sets_.end(), set) == 0;
    if (is_new && tight_sets_.size() < kMostSets) tight_sets_.push_back(set);
  }

  // Returns whether the pair leads into a set that the tree has entered.
  static bool enters_again(const Pair& pair, const std::vector<std::vector<bool>>& sets,
                           const std::vector<bool>& entered) {
    for (std::size_t t = 0; t < sets.size(); ++t) {
      if (entered[t] && sets[t][static_cast<std::size_t>(pair.to)] &&
          !sets[t][static_cast<std::size_t>(pair.from)]) {
        return true;
      }
    }
    return false;
  }

  void record(const Tree& tree) {
    for (const std::size_t p : tree.edges) {
      Pair& pair = network_.pairs()[p];
      const std::size_t l = pair.lanes.back();
      const Lane& lane = lanes_[l];
      if (--left_[l] == 0) pair.lanes.pop_back();
      forest_.trees[static_cast<std::size_t>(tree.chunk)].down[static_cast<std::size_t>(lane.to)] =
          routes_.number_of(lane.from, lane.to, lane.links);
    }
  }

  std::size_t servers_;
  const std::vector<Lane>& lanes_;
  LaneNetwork network_;
  Rng rng_;
  std::vector<std::vector<std::size_t>> out_;  // by server: pairs
  std::vector<std::int64_t> left_;             // by lane
  std::vector<std::vector<bool>> tight_sets_;  // sets of servers, by server
  std::vector<Tree> waiting_;
  std::size_t together_ = 1;  // trees that are grown before the next test
  RouteTable routes_;
  FlowForest forest_;
};

}  // namespace

bool trees_fit(int servers, const std::vector<Lane>& lanes, int trees_of_root) {
  return LaneNetwork(servers, lanes, trees_of_root).short_set().empty();
}

FlowForest pack_trees(int servers, const std::vector<Lane>& lanes, int trees_of_root, Rng rng) {
  return TreePacker(servers, lanes, trees_of_root, rng).run();
}

}  // namespace agpcs
