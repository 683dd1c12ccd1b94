// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/bound.h"

#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "ir/base/shuffle.h"
#include "planner/flows/max_flow.h"
#include "planner/flows/trees/forests.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

FlowRatio ratio(FlowAmount chunks, FlowAmount units) {
  FlowAmount a = chunks, b = units;
  while (b != 0) a = std::exchange(b, a % b);
  if (a == 0) return {};
  return {static_cast<std::int64_t>(chunks / a), static_cast<std::int64_t>(units / a)};
}

bool operator<(const FlowRatio& a, const FlowRatio& b) {
  return static_cast<FlowAmount>(a.chunks) * b.units < static_cast<FlowAmount>(b.chunks) * a.units;
}

/// A ratio and where it comes from: for a cut, the servers that chunks enter.
struct Finding {
  FlowRatio value;
  std::vector<int> inside;  // servers; if empty, the ratio is of all hops over all links
};

FlowAmount entering(const Topology& topology, const std::vector<bool>& inside) {
  FlowAmount units = 0;
  for (const Topology::Link& link : topology.links) {
    const bool enters =
        !inside[static_cast<std::size_t>(link.from)] && inside[static_cast<std::size_t>(link.to)];
    if (enters) units += link.capacity;
  }
  return units;
}

/// Returns, by server, the units that lead into it.
std::vector<FlowAmount> port_units(const Topology& topology) {
  std::vector<FlowAmount> units(static_cast<std::size_t>(topology.servers), 0);
  for (const Topology::Link& link : topology.links) {
    if (topology.is_server(link.to)) units[static_cast<std::size_t>(link.to)] += link.capacity;
  }
  return units;
}

Finding worst_port(const Topology& topology) {
  const std::vector<FlowAmount> units = port_units(topology);
  const auto least = std::min_element(units.begin(), units.end());
  return {ratio(topology.servers - 1, *least), {static_cast<int>(least - units.begin())}};
}

/// Returns, by server, the links of the shortest hop into it from any other server.
std::vector<std::int64_t> nearest_hops(const Topology& topology) {
  std::vector<std::vector<int>> before(static_cast<std::size_t>(topology.nodes()));
  for (const Topology::Link& link : topology.links) {
    before[static_cast<std::size_t>(link.to)].push_back(link.from);
  }
  // `far`: links from the nearest server to each node, for all servers at once.
  std::vector<std::int64_t> far(before.size(), 0);
  std::vector<int> level;
  std::vector<std::vector<int>> after(before.size());
  for (const Topology::Link& link : topology.links) {
    after[static_cast<std::size_t>(link.from)].push_back(link.to);
  }
  for (int s = 0; s < topology.servers; ++s) level.push_back(s);
  for (std::int64_t depth = 1; !level.empty(); ++depth) {
    std::vector<int> next;
    for (const int node : level) {
      for (const int to : after[static_cast<std::size_t>(node)]) {
        if (topology.is_server(to) || far[static_cast<std::size_t>(to)] > 0) continue;
        far[static_cast<std::size_t>(to)] = depth;
        next.push_back(to);
      }
    }
    level = std::move(next);
  }
  std::vector<std::int64_t> hops;
  for (int s = 0; s < topology.servers; ++s) {
    std::int64_t least = topology.nodes();
    for (const int from : before[static_cast<std::size_t>(s)]) {
      const bool reached = topology.is_server(from) || far[static_cast<std::size_t>(from)] > 0;
      if (reached) least = std::min(least, far[static_cast<std::size_t>(from)] + 1);
    }
    hops.push_back(least);
  }
  return hops;
}

FlowAmount total_units(const Topology& topology) {
  FlowAmount units = 0;
  for (const Topology::Link& link : topology.links) units += link.capacity;
  return units;
}

/// Bounds by hops: every server gets every other one's chunk by a hop at least as long as its
/// shortest.
Finding all_hops(const Topology& topology) {
  const std::vector<std::int64_t> hops = nearest_hops(topology);
  const auto links = std::accumulate(hops.begin(), hops.end(), FlowAmount{0});
  return {ratio(links * (topology.servers - 1), total_units(topology)), {}};
}

/// Makes `worst` the worst of all cuts. For a ratio p/q of a cut found so far, every server is
/// given q, links carry p times their units, and q x servers must flow into every server. Where it
/// does not, the minimum cut has a larger ratio (Newton's method on the ratio). Once a server was
/// looked at, it may be a source: cuts with it inside are not worse.
void find_worst_cut(const Topology& topology, Finding& worst) {
  MaxFlow network(topology.nodes() + 1);
  const int giver = topology.nodes();
  network.set_source(giver, true);
  for (const Topology::Link& link : topology.links) network.add(link.from, link.to, 0);
  for (int s = 0; s < topology.servers; ++s) network.add(giver, s, 0);
  const auto set_ratio = [&] {
    const auto links = static_cast<int>(topology.links.size());
    for (int l = 0; l < links; ++l) {
      network.set_capacity(l, static_cast<FlowAmount>(worst.value.chunks) *
                                  topology.links[static_cast<std::size_t>(l)].capacity);
    }
    for (int s = 0; s < topology.servers; ++s) network.set_capacity(links + s, worst.value.units);
  };
  set_ratio();
  std::vector<int> sinks(static_cast<std::size_t>(topology.servers));
  std::iota(sinks.begin(), sinks.end(), 0);
  Rng rng = Rng(0).fork("sinks");  // in random order, so that sources are soon near
  shuffle(sinks, rng);
  for (const int sink : sinks) {
    for (;;) {
      const FlowAmount wanted = static_cast<FlowAmount>(worst.value.units) * topology.servers;
      if (network.run(sink, wanted) == wanted) break;
      const std::vector<bool> inside = network.sink_side();
      worst.inside.clear();
      for (int s = 0; s < topology.servers; ++s) {
        if (inside[static_cast<std::size_t>(s)]) worst.inside.push_back(s);
      }
      const FlowRatio found = ratio(topology.servers - static_cast<int>(worst.inside.size()),
                                    entering(topology, inside));
      AGPCS_CHECK(worst.value < found, "a cut of {}/{} after one of {}/{}", found.chunks,
                  found.units, worst.value.chunks, worst.value.units);
      worst.value = found;
      set_ratio();
    }
    network.set_source(sink, true);
  }
}

Finding worst_of_phase(const Topology& topology, bool exact_cuts) {
  Finding worst = worst_port(topology);
  if (exact_cuts) find_worst_cut(topology, worst);
  const Finding hops = all_hops(topology);
  return worst.value < hops.value ? hops : worst;
}

/// Returns the ratio with the figures of its cut.
FlowRatio cut_of(const Topology& topology, const Finding& finding) {
  FlowRatio cut = finding.value;
  cut.inside = static_cast<std::int64_t>(finding.inside.size());
  if (cut.inside > 0) cut.entering = (topology.servers - cut.inside) * cut.units / cut.chunks;
  return cut;
}

std::string text(const Topology& topology, const Finding& finding, bool sends) {
  if (finding.inside.empty()) {
    return fmt::format("all hops take at least {} links' units for every {} that there are",
                       finding.value.chunks, finding.value.units);
  }
  std::string names;
  const std::size_t count = finding.inside.size(), shown = std::min<std::size_t>(count, 3);
  for (std::size_t i = 0; i < shown; ++i) {
    names += (i > 0 ? ", " : "") + topology.name_of(finding.inside[i]);
  }
  if (count > shown) names += fmt::format(" and {} more", count - shown);
  const std::int64_t chunks = topology.servers - static_cast<std::int64_t>(count);
  const FlowAmount units =
      static_cast<FlowAmount>(chunks) * finding.value.units / finding.value.chunks;
  return fmt::format("{} {} {}{} {} chunks over {} units a round", count > 1 ? "servers" : "server",
                     names, sends ? "send" : "receive", count > 1 ? "" : "s", chunks,
                     static_cast<std::int64_t>(units));
}

/// Returns, by node, the part that it is in: links of at least `units` units join parts.
std::vector<int> parts_of(const Topology& topology, std::int64_t units) {
  std::vector<int> part(static_cast<std::size_t>(topology.nodes()));
  std::iota(part.begin(), part.end(), 0);
  const auto find = [&](int node) {
    while (part[static_cast<std::size_t>(node)] != node) {
      int& up = part[static_cast<std::size_t>(node)];
      node = up = part[static_cast<std::size_t>(up)];
    }
    return node;
  };
  for (const Topology::Link& link : topology.links) {
    if (link.capacity < units) continue;
    const int a = find(link.from), b = find(link.to);
    part[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);
  }
  for (int node = 0; node < topology.nodes(); ++node) {
    part[static_cast<std::size_t>(node)] = find(node);
  }
  return part;
}

/// Returns the ratio of m disjoint parts that hold all servers. All parts but the owner's send each
/// chunk out once and get it once: 2 x servers x (m - 1) entries (and as many exits) of parts. A
/// part whose number is that of no server has none.
FlowRatio entries_of_parts(const Topology& topology, const std::vector<int>& part) {
  std::vector<bool> counts(static_cast<std::size_t>(topology.nodes()), false);
  FlowAmount parts = 0;
  for (int s = 0; s < topology.servers; ++s) {
    const auto p = static_cast<std::size_t>(part[static_cast<std::size_t>(s)]);
    if (!counts[p]) ++parts;
    counts[p] = true;
  }
  FlowAmount in = 0, out = 0;
  for (const Topology::Link& link : topology.links) {
    const auto from = static_cast<std::size_t>(part[static_cast<std::size_t>(link.from)]);
    const auto to = static_cast<std::size_t>(part[static_cast<std::size_t>(link.to)]);
    if (from == to) continue;
    if (counts[to]) in += link.capacity;
    if (counts[from]) out += link.capacity;
  }
  if (parts < 2) return {};
  return ratio(2 * static_cast<FlowAmount>(topology.servers) * (parts - 1), std::min(in, out));
}

/// Returns the ratio of the same cut if all chunks enter it, also those of the servers inside.
FlowRatio with_own_chunks(const Topology& topology, const Finding& finding) {
  if (finding.inside.empty()) return finding.value;
  const FlowAmount entering = topology.servers - static_cast<int>(finding.inside.size());
  return ratio(topology.servers * static_cast<FlowAmount>(finding.value.chunks),
               entering * finding.value.units);
}

/// Returns what both phases need together. Into a set of servers come the chunks of the others
/// (gathered) and its own (reduced): all of them, over the units that lead in.
FlowRatio both_phases(const Topology& topology, bool symmetric) {
  const Topology turned = symmetric ? Topology{} : reversed(topology);
  FlowRatio worst;
  const auto raise = [&](const FlowRatio& other) {
    if (worst < other) worst = other;
  };
  FlowAmount hops = 0;
  for (const Topology* way : {&topology, symmetric ? &topology : &turned}) {
    const std::vector<FlowAmount> units = port_units(*way);
    raise(ratio(topology.servers, *std::min_element(units.begin(), units.end())));
    for (const std::int64_t links : nearest_hops(*way)) hops += links;
  }
  raise(ratio(hops * (topology.servers - 1), total_units(topology)));
  std::vector<int> single(static_cast<std::size_t>(topology.nodes()));
  std::iota(single.begin(), single.end(), 0);
  raise(entries_of_parts(topology, single));
  std::set<std::int64_t> capacities;
  for (const Topology::Link& link : topology.links) capacities.insert(link.capacity);
  int looked_at = 0;
  for (const std::int64_t units : capacities) {
    if (++looked_at > 64) break;
    raise(entries_of_parts(topology, parts_of(topology, units)));
  }
  return worst;
}

}  // namespace

std::int64_t FlowRatio::sub_rounds(int sub_chunks) const {
  const FlowAmount all = static_cast<FlowAmount>(chunks) * sub_chunks;
  const auto rounds = static_cast<std::int64_t>((all + units - 1) / units);
  if (inside < 2) return rounds;
  const FlowAmount before_last = all * entering / units - entering / inside;
  if (before_last <= 0) return rounds;
  return std::max(rounds, static_cast<std::int64_t>((before_last + entering - 1) / entering) + 1);
}

double FlowBound::rounds(int sub_chunks) const {
  return static_cast<double>(exact_reduce_scatter.sub_rounds(sub_chunks) +
                             exact_all_gather.sub_rounds(sub_chunks)) /
         sub_chunks;
}

double FlowBound::overlapped_rounds(int sub_chunks) const {
  return static_cast<double>(exact_overlapped.sub_rounds(sub_chunks)) / sub_chunks;
}

FlowBound flow_bound(const Topology& topology, bool exact_cuts) {
  const bool symmetric = has_equal_twins(topology);
  const Finding gather = worst_of_phase(topology, exact_cuts);
  const Finding scatter = symmetric ? gather : worst_of_phase(reversed(topology), exact_cuts);
  FlowBound bound;
  bound.exact_all_gather = cut_of(topology, gather);
  bound.exact_reduce_scatter = cut_of(topology, scatter);
  bound.exact_overlapped = both_phases(topology, symmetric);
  for (const Finding* finding : {&scatter, &gather}) {
    const FlowRatio all = with_own_chunks(topology, *finding);
    if (bound.exact_overlapped < all) bound.exact_overlapped = all;
  }
  bound.all_gather = bound.exact_all_gather.value();
  bound.reduce_scatter = bound.exact_reduce_scatter.value();
  bound.overlapped = bound.exact_overlapped.value();
  const bool sends = gather.value < scatter.value;
  bound.reason = text(topology, sends ? scatter : gather, sends);
  return bound;
}

}  // namespace agpcs
