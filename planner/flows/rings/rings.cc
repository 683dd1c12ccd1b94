// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/rings/rings.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/base/shuffle.h"
#include "planner/flows/rings/orientation.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr int kMovesPerServer = 100, kMostMoves = 3000;  // in one try
constexpr std::uint64_t kOneInMakesItWorse = 16;         // one in so many may add a cycle

/// Units, by link.
using Units = std::vector<std::int64_t>;

/// Finds flow that enters and leaves every server equally often. The nodes of the residual graph
/// are servers where flow begins, switches, and servers where it ends.
class Circulation {
 public:
  explicit Circulation(const Topology& topology)
      : topology_(topology),
        arcs_(at(topology.nodes() + topology.servers)),
        came_by_(arcs_.size()),
        seen_(arcs_.size(), 0) {
    for (int l = 0; l < static_cast<int>(topology.links.size()); ++l) {
      arcs_[at(tail(l))].push_back(l);
      arcs_[at(head(l))].push_back(~l);
    }
  }

  /// Finds a drawn flow of `units` through every server within `capacity`: along the `liked` links
  /// as far as possible, then along shortest ways. Empty if there is no such flow.
  Units find(const Units& capacity, int units, const Units& liked, Rng& rng) {
    flow_.assign(capacity.size(), 0);
    wild_ = false;
    std::vector<int> left(at(topology_.servers), units), absorbed(left.size(), 0);
    std::vector<int> sources(left.size());
    std::iota(sources.begin(), sources.end(), 0);
    for (const bool any : {false, true}) {
      capacity_ = capacity;
      for (std::size_t l = 0; !any && l < capacity.size(); ++l) {
        capacity_[l] = std::min(liked[l], capacity[l]);
      }
      shuffle(sources, rng);
      for (const int source : sources) {
        for (bool found = true; found && left[at(source)] > 0; left[at(source)] -= found) {
          found = augment(source, units, absorbed, rng);
          if (!found && any) return {};
        }
      }
    }
    return flow_;
  }

  /// Moves `flow` along a drawn cycle of the residual graph through `server`. Returns false if
  /// there is none.
  bool turn(int server, const Units& capacity, Units& flow, Rng& rng) {
    capacity_ = capacity;
    flow_ = flow;
    wild_ = rng.below(2) == 0;  // shortest ways alone lead to few flows
    std::vector<int> used, open;
    for (const int l : arcs_[at(server)]) {
      if (flow_[at(l)] > 0) used.push_back(l);
      if (flow_[at(l)] < capacity_[at(l)]) open.push_back(l);
    }
    if (used.empty() || open.empty()) return false;
    const int from = used[rng.below(used.size())], to = open[rng.below(open.size())];
    if (from == to) return false;
    --flow_[at(from)];
    ++flow_[at(to)];
    if (head(to) != head(from)) {
      if (search(head(to), rng, [&](int node) { return node == head(from); }) < 0) return false;
      push(head(to), head(from));
    }
    flow = flow_;
    return true;
  }

 private:
  int tail(int link) const { return topology_.links[at(link)].from; }
  int head(int link) const {
    const int to = topology_.links[at(link)].to;
    return topology_.is_server(to) ? topology_.nodes() + to : to;
  }

  bool augment(int source, int units, std::vector<int>& absorbed, Rng& rng) {
    const int end = search(source, rng, [&](int node) {
      return node >= topology_.nodes() && absorbed[at(node - topology_.nodes())] < units;
    });
    if (end < 0) return false;
    ++absorbed[at(end - topology_.nodes())];
    push(source, end);
    return true;
  }

  /// Searches from `source` to the first node with `is_end`, breadth first or, if wild, in any
  /// order. Returns that node, or -1 if there is none.
  template <typename F>
  int search(int source, Rng& rng, F is_end) {
    ++stamp_;
    queue_.assign(1, source);
    seen_[at(source)] = stamp_;
    for (std::size_t q = 0; q < queue_.size(); ++q) {
      if (wild_) std::swap(queue_[q], queue_[q + rng.below(queue_.size() - q)]);
      const int node = queue_[q];
      if (is_end(node)) return node;
      const std::vector<int>& arcs = arcs_[at(node)];
      const std::size_t first = arcs.empty() ? 0 : rng.below(arcs.size());
      for (std::size_t a = 0; a < arcs.size(); ++a) visit(arcs[(first + a) % arcs.size()]);
    }
    return -1;
  }

  void visit(int arc) {
    const int link = arc < 0 ? ~arc : arc;
    const bool open = arc < 0 ? flow_[at(link)] > 0 : flow_[at(link)] < capacity_[at(link)];
    const int next = arc < 0 ? tail(link) : head(link);
    if (!open || seen_[at(next)] == stamp_) return;
    seen_[at(next)] = stamp_;
    came_by_[at(next)] = arc;
    queue_.push_back(next);
  }

  void push(int source, int end) {
    for (int node = end; node != source;) {
      const int arc = came_by_[at(node)];
      const int link = arc < 0 ? ~arc : arc;
      flow_[at(link)] += arc < 0 ? -1 : 1;
      node = arc < 0 ? head(link) : tail(link);
    }
  }

  const Topology& topology_;
  Units capacity_, flow_;
  std::vector<std::vector<int>> arcs_;  // by node: its links; ~link against the link's direction
  std::vector<int> came_by_, seen_, queue_;
  int stamp_ = 0;
  bool wild_ = false;
};

class Sets {
 public:
  int add() {
    parent_.push_back(static_cast<int>(parent_.size()));
    return parent_.back();
  }
  int find(int x) {
    while (parent_[at(x)] != x) x = parent_[at(x)] = parent_[at(parent_[at(x)])];
    return x;
  }
  /// Returns false if they were one set already.
  bool join(int a, int b) {
    a = find(a);
    b = find(b);
    parent_[at(a)] = b;
    return a != b;
  }

 private:
  std::vector<int> parent_;
};

/// Cycles of units of links. Every unit has a next one, which begins at the node where it ends.
class Cycles {
 public:
  Cycles(const Topology& topology, const Units& flow, Rng& rng)
      : topology_(topology), into_(at(topology.nodes())), out_of_(into_) {
    for (int l = 0; l < static_cast<int>(flow.size()); ++l) {
      for (std::int64_t u = 0; u < flow[at(l)]; ++u) {
        into_[at(topology.links[at(l)].to)].push_back(add(l));
        out_of_[at(topology.links[at(l)].from)].push_back(static_cast<int>(link_.size()) - 1);
      }
    }
    for (int node = 0; node < topology.nodes(); ++node) {
      std::vector<int>& in = into_[at(node)];
      shuffle(in, rng);
      for (std::size_t i = 0; i < in.size(); ++i) go_on(in[i], out_of_[at(node)][i]);
    }
  }

  /// Merges cycles that meet at a switch.
  void merge_at_switches() {
    for (int node = topology_.servers; node < topology_.nodes(); ++node) {
      const std::vector<int>& in = into_[at(node)];
      for (std::size_t i = 1; i < in.size(); ++i) exchange(in[0], in[i]);
    }
  }

  /// Merges cycles that cables between switches join, if both ways have `spare` units, and takes
  /// these.
  void merge_over(const std::vector<std::pair<int, int>>& cables, Units& spare) {
    std::vector<int> at_switch(at(topology_.nodes()), -1);  // a set of cycles, perhaps a new one
    for (int w = topology_.servers; w < topology_.nodes(); ++w) {
      at_switch[at(w)] = into_[at(w)].empty() ? sets_.add() : set_of_[at(into_[at(w)][0])];
    }
    for (const auto& [there, back] : cables) {
      const Topology::Link& link = topology_.links[at(there)];
      if (spare[at(there)] < 1 || spare[at(back)] < 1) continue;
      if (!sets_.join(at_switch[at(link.from)], at_switch[at(link.to)])) continue;
      --spare[at(there)];
      --spare[at(back)];
      cross(there, back);
    }
  }

  /// Returns the sets of cycles that servers are in, one for each unit that leaves them, by server.
  std::vector<int> sets_of_servers() {
    std::vector<int> sets;
    for (int s = 0; s < topology_.servers; ++s) {
      for (const int unit : out_of_[at(s)]) sets.push_back(sets_.find(set_of_[at(unit)]));
    }
    return sets;
  }

  /// Returns the ring from server 0 on; empty unless it visits every server once.
  FlowRing ring() const {
    FlowRing ring;
    if (out_of_[0].size() != 1) return {};
    const int first = out_of_[0][0];
    int unit = first;
    do {
      FlowRoute hop = {topology_.links[at(link_[at(unit)])].from, 0, {}};
      for (bool arrived = false; !arrived; unit = next_[at(unit)]) {
        hop.links.push_back(link_[at(unit)]);
        hop.to = topology_.links[at(link_[at(unit)])].to;
        arrived = topology_.is_server(hop.to);
      }
      ring.order.push_back(hop.from);
      ring.hops.push_back(without_loops(std::move(hop)));
      if (ring.order.size() > at(topology_.servers)) return {};
    } while (unit != first);
    return ring.order.size() == at(topology_.servers) ? ring : FlowRing();
  }

 private:
  int add(int link) {
    link_.push_back(link);
    next_.push_back(-1);
    set_of_.push_back(sets_.add());
    return static_cast<int>(link_.size()) - 1;
  }
  void go_on(int unit, int next) {
    next_[at(unit)] = next;
    sets_.join(set_of_[at(unit)], set_of_[at(next)]);
  }
  void exchange(int a, int b) {
    if (sets_.join(set_of_[at(a)], set_of_[at(b)])) std::swap(next_[at(a)], next_[at(b)]);
  }

  // Puts the way there and back into the cycles at both ends. A switch without a cycle turns it
  // round.
  void cross(int there, int back) {
    const int out = add(there), home = add(back);
    sets_.join(set_of_[at(out)], set_of_[at(home)]);
    insert(topology_.links[at(there)].from, home, out);
    insert(topology_.links[at(there)].to, out, home);
  }
  // Lets, at `node`, what came in go out by `leaves`, and `enters` take over its way.
  void insert(int node, int enters, int leaves) {
    std::vector<int>& in = into_[at(node)];
    next_[at(enters)] = leaves;
    if (!in.empty()) {
      std::swap(next_[at(enters)], next_[at(in[0])]);
      sets_.join(set_of_[at(enters)], set_of_[at(in[0])]);
    }
    in.push_back(enters);
  }

  FlowRoute without_loops(FlowRoute hop) const {
    std::vector<int> links;
    for (const int l : hop.links) {
      links.push_back(l);
      const int node = topology_.links[at(l)].to;
      const auto before = std::find_if(links.begin(), links.end(), [&](int other) {
        return topology_.links[at(other)].from == node;
      });
      if (!topology_.is_server(node)) links.erase(before, links.end());
    }
    hop.links = std::move(links);
    return hop;
  }

  const Topology& topology_;
  std::vector<std::vector<int>> into_, out_of_;  // by node: units
  std::vector<int> link_, next_, set_of_;        // by unit
  Sets sets_;
};

/// Returns links between switches with the links that lead back, in drawn order.
std::vector<std::pair<int, int>> switch_cables(const Topology& topology, Rng& rng) {
  std::map<std::pair<int, int>, int> by_ends;
  for (int l = 0; l < static_cast<int>(topology.links.size()); ++l) {
    const Topology::Link& link = topology.links[at(l)];
    if (topology.is_server(link.from) || topology.is_server(link.to)) continue;
    by_ends.emplace(std::pair(link.from, link.to), l);
  }
  std::vector<std::pair<int, int>> cables;
  for (const auto& [ends, l] : by_ends) {
    const auto back = by_ends.find({ends.second, ends.first});
    if (ends.first < ends.second && back != by_ends.end()) cables.emplace_back(l, back->second);
  }
  shuffle(cables, rng);
  return cables;
}

bool has_own_routes(const Topology& topology, const FlowRing& ring) {
  return topology.routes.empty() ||
         std::all_of(ring.hops.begin(), ring.hops.end(), [&](const FlowRoute& hop) {
           return topology.routes[at(hop.from) * at(topology.servers) + at(hop.to)] == hop.links;
         });
}

/// Holds flows of one unit through every server each, which together stay within the capacities.
/// Moves of flow turn each into a single cycle.
class RingFlows {
 public:
  explicit RingFlows(const Topology& topology) : topology_(topology), circulation_(topology) {
    for (const Topology::Link& link : topology.links) capacity_.push_back(link.capacity);
  }

  /// Draws the flows. Returns false if the capacities do not allow `count`.
  bool start(int count, Rng& rng) {
    const Units liked = orient_servers(topology_, rng);
    Units rest = circulation_.find(capacity_, count, liked, rng);
    if (rest.empty()) return false;
    spare_ = capacity_;
    for (std::size_t l = 0; l < spare_.size(); ++l) spare_[l] -= rest[l];
    flows_.clear();
    for (int i = 0; i < count; ++i) {
      flows_.push_back(circulation_.find(rest, 1, liked, rng));
      AGPCS_CHECK(!flows_.back().empty(), "ring {} of {}: no unit through every server", i, count);
      for (std::size_t l = 0; l < rest.size(); ++l) rest[l] -= flows_.back()[l];
    }
    return true;
  }

  /// Returns the number of cycles beyond one for each ring. Notes the servers of all cycles but
  /// each ring's longest.
  int excess(Rng& rng) {
    int excess = 0;
    Units spare = spare_;
    stray_.clear();
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      const std::vector<int> sets = merged(flows_[i], spare, rng).sets_of_servers();
      std::vector<int> sorted = sets;
      std::sort(sorted.begin(), sorted.end());
      std::size_t most = 0;
      int longest = -1;
      for (std::size_t b = 0, e = 0; b < sorted.size(); b = e, ++excess) {
        while (e < sorted.size() && sorted[e] == sorted[b]) ++e;
        if (e - b > most) {
          most = e - b;
          longest = sorted[b];
        }
      }
      --excess;
      for (std::size_t s = 0; s < sets.size(); ++s) {
        if (sets[s] != longest) stray_.emplace_back(i, static_cast<int>(s));
      }
    }
    return excess;
  }

  /// Moves flow through a server off the longest cycle between its ring and another, or what is
  /// spare. Mostly takes it back if that makes more cycles. Returns the excess. Needs: an excess.
  int move(int excess_before, Rng& rng) {
    const auto [i, server] = stray_[rng.below(stray_.size())];
    const std::size_t j = rng.below(flows_.size() + 1);
    if (i == j) return excess_before;
    Units& mine = flows_[i];
    Units& other = j < flows_.size() ? flows_[j] : spare_;
    const Units before = mine, other_before = other;
    const auto stray_before = stray_;
    Units both = mine;
    for (std::size_t l = 0; l < both.size(); ++l) both[l] += other[l];
    if (!circulation_.turn(server, both, mine, rng)) return excess_before;
    for (std::size_t l = 0; l < both.size(); ++l) other[l] = both[l] - mine[l];
    const int now = excess(rng);
    if (now <= excess_before + (rng.below(kOneInMakesItWorse) == 0 ? 1 : 0)) return now;
    mine = before;
    other = other_before;
    stray_ = stray_before;
    return excess_before;
  }

  std::vector<FlowRing> rings(Rng& rng) const {
    std::vector<FlowRing> rings;
    Units spare = spare_;
    for (const Units& flow : flows_) {
      rings.push_back(merged(flow, spare, rng).ring());
      if (rings.back().order.empty() || !has_own_routes(topology_, rings.back())) return {};
    }
    return rings;
  }

 private:
  Cycles merged(const Units& flow, Units& spare, Rng& rng) const {
    Cycles cycles(topology_, flow, rng);
    cycles.merge_at_switches();
    cycles.merge_over(switch_cables(topology_, rng), spare);
    return cycles;
  }

  const Topology& topology_;
  Circulation circulation_;
  Units capacity_, spare_;
  std::vector<Units> flows_;  // one for each ring
  std::vector<std::pair<std::size_t, int>>
      stray_;  // rings and servers off the ring's longest cycle
};

}  // namespace

std::vector<FlowRing> find_rings(const Topology& topology, int count, Rng rng, int tries) {
  RingFlows flows(topology);
  for (int t = 0; t < tries; ++t) {
    if (!flows.start(count, rng)) return {};
    int excess = flows.excess(rng);
    const int moves = std::min(kMostMoves, kMovesPerServer * topology.servers);
    for (int m = 0; m < moves && excess > 0; ++m) {
      excess = flows.move(excess, rng);
    }
    std::vector<FlowRing> rings = excess > 0 ? std::vector<FlowRing>() : flows.rings(rng);
    if (!rings.empty()) return rings;
  }
  return {};
}

FlowSchedule all_gather_along(const std::vector<FlowRing>& rings) {
  const std::size_t servers = rings.front().order.size(), count = rings.size();
  FlowSchedule schedule;
  schedule.servers = static_cast<int>(servers);
  schedule.sub_chunks = static_cast<int>(count);
  schedule.all_gather.reserve(count * servers * (servers - 1));
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::int32_t>(schedule.routes.size());
    schedule.routes.insert(schedule.routes.end(), rings[i].hops.begin(), rings[i].hops.end());
    for (std::size_t owner = 0; owner < servers; ++owner) {
      const auto chunk = static_cast<std::int32_t>(at(rings[i].order[owner]) * count + i);
      for (std::size_t step = 0; step + 1 < servers; ++step) {
        const auto hop = static_cast<std::int32_t>((owner + step) % servers);
        schedule.all_gather.push_back({chunk, first + hop, static_cast<std::int32_t>(step)});
      }
    }
  }
  normalize(schedule);
  return schedule;
}

}  // namespace agpcs
