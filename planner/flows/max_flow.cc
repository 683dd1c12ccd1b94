// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/max_flow.h"

#include <algorithm>

namespace agpcs {

MaxFlow::MaxFlow(int nodes)
    : arcs_(static_cast<std::size_t>(nodes)),
      source_(arcs_.size(), false),
      level_(arcs_.size(), -1),
      next_(arcs_.size(), 0) {}

int MaxFlow::add(int from, int to, FlowAmount capacity) {
  const int arc = static_cast<int>(to_.size() / 2);
  arcs_[static_cast<std::size_t>(from)].push_back(2 * arc);
  arcs_[static_cast<std::size_t>(to)].push_back(2 * arc + 1);
  to_.insert(to_.end(), {to, from});
  for (auto* amounts : {&capacity_, &left_}) amounts->insert(amounts->end(), {capacity, 0});
  return arc;
}

void MaxFlow::set_capacity(int arc, FlowAmount capacity) {
  const auto direction = static_cast<std::size_t>(2 * arc);
  capacity_[direction] = left_[direction] = capacity;
}

FlowAmount MaxFlow::run(int sink, FlowAmount limit) {
  forget();
  if (source_[static_cast<std::size_t>(sink)]) return limit;
  FlowAmount flow = 0;
  while (flow < limit && mark_levels(sink)) {
    while (flow < limit) {
      const FlowAmount pushed = push(sink, limit - flow);
      if (pushed == 0) break;
      flow += pushed;
    }
  }
  return flow;
}

std::vector<bool> MaxFlow::sink_side() const {
  std::vector<bool> side(level_.size());
  std::transform(level_.begin(), level_.end(), side.begin(), [](int level) { return level >= 0; });
  return side;
}

void MaxFlow::forget() {
  for (const int direction : used_) {
    const auto d = static_cast<std::size_t>(direction);
    left_[d] = capacity_[d];
  }
  used_.clear();
}

// Sets levels breadth first from the sink against the arcs, up to the level of the nearest sources.
// Returns whether there is a source.
bool MaxFlow::mark_levels(int sink) {
  for (const int node : seen_) level_[static_cast<std::size_t>(node)] = -1;
  seen_ = {sink};
  level_[static_cast<std::size_t>(sink)] = 0;
  next_[static_cast<std::size_t>(sink)] = 0;
  int last = -1;  // level of the nearest sources
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto at = static_cast<std::size_t>(seen_[i]);
    if (last >= 0 && level_[at] >= last) break;
    for (const int d : arcs_[at]) {
      const int node = to_[static_cast<std::size_t>(d)];
      const auto n = static_cast<std::size_t>(node);
      if (level_[n] >= 0 || left_[static_cast<std::size_t>(d ^ 1)] == 0) continue;
      level_[n] = level_[at] + 1;
      next_[n] = 0;
      seen_.push_back(node);
      if (source_[n]) last = level_[n];
    }
  }
  return last >= 0;
}

// Pushes what sources can send to `node` along falling levels, and returns how much it is.
FlowAmount MaxFlow::push(int node, FlowAmount wanted) {
  const auto at = static_cast<std::size_t>(node);
  if (source_[at]) return wanted;
  FlowAmount pushed = 0;
  for (std::size_t& i = next_[at]; i < degree(node); ++i) {
    const int back = arcs_[at][i] ^ 1;  // from the neighbour to `node`
    const auto b = static_cast<std::size_t>(back);
    const int from = to_[static_cast<std::size_t>(arcs_[at][i])];
    if (left_[b] == 0 || level_[static_cast<std::size_t>(from)] != level_[at] + 1) continue;
    const FlowAmount got = push(from, std::min(wanted - pushed, left_[b]));
    if (got == 0) continue;
    left_[b] -= got;
    left_[b ^ 1] += got;
    used_.insert(used_.end(), {back, back ^ 1});
    pushed += got;
    if (pushed == wanted) return pushed;  // this direction may have more
  }
  return pushed;
}

}  // namespace agpcs
