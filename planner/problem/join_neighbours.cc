// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/join_neighbours.h"

#include "ir/base/at.h"
#include "planner/problem/blocks.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace agpcs {
namespace {

class PairChooser {
 public:
  PairChooser(const BlockGraph& graph, const JoinLimits& limits)
      : graph_(graph),
        limits_(limits),
        level_(at(graph.size())),
        partner_(at(graph.size()), -1),
        out_(at(graph.size())),
        in_(at(graph.size())) {
    for (const BlockEdge& edge : graph.edges) {  // edges ascend by `from`, and from < to
      level_[at(edge.to)] = std::max(level_[at(edge.to)], level_[at(edge.from)] + 1);
      out_[at(edge.from)].push_back(edge.to);
      in_[at(edge.to)].push_back(edge.from);
    }
  }

  std::vector<int> run(int most) {
    std::vector<const BlockEdge*> edges;
    for (const BlockEdge& edge : graph_.edges) {
      if (is_light(edge)) edges.push_back(&edge);
    }
    const auto key = [&](const BlockEdge* edge) {
      return std::tuple(-edge->bytes, flops(*edge), edge->from, edge->to);
    };
    std::sort(edges.begin(), edges.end(),
              [&](const BlockEdge* a, const BlockEdge* b) { return key(a) < key(b); });
    for (const BlockEdge* edge : edges) {
      if (most == 0) break;
      if (!may_join(edge->from, edge->to)) continue;
      partner_[at(edge->from)] = edge->to;
      partner_[at(edge->to)] = edge->from;
      --most;
    }
    return std::move(partner_);
  }

 private:
  double flops(const BlockEdge& edge) const {
    return graph_.blocks[at(edge.from)].flops + graph_.blocks[at(edge.to)].flops;
  }
  bool is_light(const BlockEdge& edge) const {
    const double parameters =
        limits_.parameter_bytes[at(edge.from)] + limits_.parameter_bytes[at(edge.to)];
    return level_[at(edge.to)] == level_[at(edge.from)] + 1 &&
           limits_.window[at(edge.from)] == limits_.window[at(edge.to)] &&
           flops(edge) <= limits_.most_flops && parameters <= limits_.most_parameters;
  }

  bool may_join(int from, int to) const {
    if (partner_[at(from)] >= 0 || partner_[at(to)] >= 0) return false;
    const int level = level_[at(from)];
    const auto is_upper = [&](int block) {
      return level_[at(block)] == level + 1 && partner_[at(block)] >= 0 &&
             level_[at(partner_[at(block)])] == level;
    };
    const auto is_lower = [&](int block) {
      return level_[at(block)] == level && partner_[at(block)] >= 0 &&
             level_[at(partner_[at(block)])] == level + 1;
    };
    return !(std::any_of(out_[at(from)].begin(), out_[at(from)].end(), is_upper) &&
             std::any_of(in_[at(to)].begin(), in_[at(to)].end(), is_lower));
  }

  const BlockGraph& graph_;
  const JoinLimits& limits_;
  std::vector<int> level_, partner_;
  std::vector<std::vector<int>> out_, in_;
};

}  // namespace

std::vector<int> pairs_to_join(const BlockGraph& graph, const JoinLimits& limits, int most) {
  return PairChooser(graph, limits).run(most);
}

std::vector<int> windows_of(const BlockGraph& graph, int windows) {
  double total = 0, before = 0;
  for (const Block& block : graph.blocks) total += block.flops;
  std::vector<bool> begins(at(graph.size()));
  int part = 0, best = -1;  // `best`: the cheapest cut of this part
  for (int i = 1; i < graph.size() && total > 0; ++i) {
    before += graph.blocks[at(i - 1)].flops;
    const int here = static_cast<int>(before / total * windows + 0.5);
    if (here != part && best >= 0) {
      begins[at(best)] = true;
      best = -1;
    }
    part = here;
    if (here == 0 || here == windows) continue;
    if (best < 0 || graph.cut_bytes[at(i)] < graph.cut_bytes[at(best)]) best = i;
  }
  std::vector<int> window;
  int number = 0;
  for (int i = 0; i < graph.size(); ++i) {
    if (begins[at(i)]) ++number;
    window.push_back(number);
  }
  return window;
}

}  // namespace agpcs
