// SPDX-License-Identifier: Apache-2.0
// Seeds of the max-load problem: METIS, and contiguous runs of an order.
#include "ir/base/at.h"
#include "planner/problem/blocks.h"
#include "tests/bench/max_load/max_load.h"
#include "tests/bench/max_load/max_load_state.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::vector<std::vector<int>> sinks_of_items(const MaxLoadItems& items) {
  std::vector<std::vector<int>> result(items.items.size());
  for (const MaxLoadNet& net : items.nets) {
    std::vector<int>& row = result[at(net.source)];
    row.insert(row.end(), items.sinks.begin() + net.first_sink, items.sinks.begin() + net.end_sink);
  }
  return result;
}

std::vector<std::vector<int>> reversed(const std::vector<std::vector<int>>& rows) {
  std::vector<std::vector<int>> result(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const int j : rows[i]) result[at(j)].push_back(static_cast<int>(i));
  }
  return result;
}

/// Each item after all that it reaches over `rows`, as far as cycles allow.
std::vector<int> post_order(const std::vector<std::vector<int>>& rows,
                            const std::vector<std::vector<int>>& back) {
  const int count = static_cast<int>(rows.size());
  std::vector<int> order, stack;
  std::vector<std::size_t> next(rows.size(), 0);
  std::vector<char> seen(rows.size(), 0);
  const auto visit = [&](int root) {
    if (seen[at(root)] != 0) return;
    seen[at(root)] = 1;
    for (stack.push_back(root); !stack.empty();) {
      const int i = stack.back();
      if (next[at(i)] == rows[at(i)].size()) {
        order.push_back(i);
        stack.pop_back();
        continue;
      }
      const int j = rows[at(i)][next[at(i)]++];
      if (seen[at(j)] != 0) continue;
      seen[at(j)] = 1;
      stack.push_back(j);
    }
  };
  for (int i = 0; i < count; ++i) {
    if (back[at(i)].empty()) visit(i);
  }
  for (int i = 0; i < count; ++i) visit(i);
  return order;
}

/// Breadth first from `root` over what is not yet in `seen`; neighbours with few neighbours first.
std::vector<int> breadth_first(const std::vector<std::vector<int>>& rows, int root,
                               std::vector<char>& seen) {
  std::vector<int> order = {root};
  seen[at(root)] = 1;
  for (std::size_t head = 0; head < order.size(); ++head) {
    std::vector<int> fresh;
    for (const int j : rows[at(order[head])]) {
      if (seen[at(j)] == 0) fresh.push_back(j);
      seen[at(j)] = 1;
    }
    std::stable_sort(fresh.begin(), fresh.end(),
                     [&](int a, int b) { return rows[at(a)].size() < rows[at(b)].size(); });
    order.insert(order.end(), fresh.begin(), fresh.end());
  }
  return order;
}

/// As Cuthill and McKee's, each component from the end that a first search reaches last.
std::vector<int> without_directions(std::vector<std::vector<int>> rows,
                                    const std::vector<std::vector<int>>& back) {
  std::vector<int> order;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].insert(rows[i].end(), back[i].begin(), back[i].end());
  }
  std::vector<char> seen(rows.size(), 0), tried(rows.size(), 0);
  for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
    if (seen[at(i)] != 0) continue;
    const int far = breadth_first(rows, i, tried).back();
    const std::vector<int> component = breadth_first(rows, far, seen);
    order.insert(order.end(), component.begin(), component.end());
  }
  return order;
}

/// Load of a run of an order, as it grows at its end.
class RunLoad {
 public:
  explicit RunLoad(const MaxLoadItems& items)
      : items_(items), sinks_inside_(items.nets.size(), 0), source_inside_(items.nets.size(), 0) {}

  void clear() {
    for (const int n : touched_) sinks_inside_[at(n)] = source_inside_[at(n)] = 0;
    touched_.clear();
    load_ = time_ = size_ = 0;
  }

  void add(int item) {
    load_ += items_.items[at(item)].time;
    time_ += items_.items[at(item)].time;
    size_ += items_.items[at(item)].size;
    for (int n = items_.first_net[at(item)]; n < items_.first_net[at(item) + 1]; ++n) {
      load_ -= paid(n);
      source_inside_[at(n)] = 1;
      load_ += paid(n);
      touched_.push_back(n);
    }
    for (int r = items_.first_read[at(item)]; r < items_.first_read[at(item) + 1]; ++r) {
      const int n = items_.reads[at(r)];
      load_ -= paid(n);
      ++sinks_inside_[at(n)];
      load_ += paid(n);
      touched_.push_back(n);
    }
  }

  std::int64_t load() const { return load_; }
  std::int64_t time() const { return time_; }
  bool fits() const { return size_ <= items_.capacity; }

 private:
  std::int64_t paid(int n) const {
    const MaxLoadNet& net = items_.nets[at(n)];
    const int inside = sinks_inside_[at(n)];
    const bool cut =
        source_inside_[at(n)] != 0 ? inside < net.end_sink - net.first_sink : inside > 0;
    return cut ? net.cost : 0;
  }

  const MaxLoadItems& items_;
  std::vector<int> sinks_inside_, source_inside_, touched_;
  std::int64_t load_ = 0, time_ = 0, size_ = 0;
};

/// The end in `row` of the run of each accelerator. Empty: with `fit`, no runs fit into memory.
std::vector<int> best_runs(const MaxLoadItems& items, const std::vector<int>& row, bool fit) {
  const int pieces = static_cast<int>(row.size());
  const std::size_t width = row.size() + 1;
  // best[d][j]: least max load of the first j pieces on at most d accelerators; from[d][j]: where
  // the last run begins.
  std::vector<std::int64_t> best((at(items.devices) + 1) * width, kNever);
  std::vector<int> from(best.size(), 0);
  for (int d = 0; d <= items.devices; ++d) best[at(d) * width] = 0;
  RunLoad run(items);
  for (int i = 0; i < pieces; ++i) {
    run.clear();
    for (int j = i; j < pieces && run.time() < best.back(); ++j) {
      run.add(row[at(j)]);
      if (fit && !run.fits()) break;
      for (int d = 1; d <= items.devices; ++d) {
        const std::int64_t before = best[at(d - 1) * width + at(i)];
        const std::size_t here = at(d) * width + at(j) + 1;
        const std::int64_t load = std::max(before, run.load());
        if (load < best[here]) best[here] = load, from[here] = i;
      }
    }
  }
  std::vector<int> ends;
  if (best.back() == kNever) return ends;
  for (int d = items.devices, end = pieces; d > 0; --d) {
    ends.insert(ends.begin(), end);
    if (end > 0) end = from[at(d) * width + at(end)];
  }
  return ends;
}

/// Items as blocks; an edge carries the cost of all nets between its ends.
BlockGraph block_graph(const MaxLoadItems& items) {
  BlockGraph graph;
  for (const MaxLoadItem& item : items.items) {
    graph.blocks.push_back({{}, static_cast<double>(item.time)});
  }
  std::vector<BlockEdge> edges;
  for (const MaxLoadNet& net : items.nets) {
    for (int i = net.first_sink; i < net.end_sink; ++i) {
      const int sink = items.sinks[at(i)];
      edges.push_back(
          {std::min(net.source, sink), std::max(net.source, sink), static_cast<double>(net.cost)});
    }
  }
  std::stable_sort(edges.begin(), edges.end(), [](const BlockEdge& a, const BlockEdge& b) {
    return a.from != b.from ? a.from < b.from : a.to < b.to;
  });
  for (const BlockEdge& edge : edges) {
    const bool again = !graph.edges.empty() && graph.edges.back().from == edge.from &&
                       graph.edges.back().to == edge.to;
    again ? void(graph.edges.back().bytes += edge.bytes) : graph.edges.push_back(edge);
  }
  return graph;
}

}  // namespace

std::vector<int> metis_max_load(const MaxLoadItems& items, const MetisOptions& options) {
  std::vector<int> devices(items.items.size(), 1);
  if (items.devices == 1 || items.size() <= items.devices) {
    for (int i = 0; i < items.size(); ++i) devices[at(i)] = i % items.devices + 1;
  } else {
    const BlockGraph graph = block_graph(items);
    const std::vector<double> targets(at(items.devices), 1.0 / items.devices);
    const Result<std::vector<int>> parts = metis_partition(graph, targets, options);
    for (std::size_t i = 0; parts && i < devices.size(); ++i) devices[i] = parts.value()[i] + 1;
  }
  for (int i = 0; i < items.size(); ++i) {
    if (!items.items[at(i)].accelerator) devices[at(i)] = 0;
  }
  return devices;
}

std::vector<int> linear_max_load(const MaxLoadItems& items, const std::vector<int>& order) {
  std::vector<int> devices(items.items.size(), 0), row;
  for (const int item : order) {  // what only the CPU runs is there
    if (items.items[at(item)].accelerator) row.push_back(item);
  }
  std::vector<int> ends = best_runs(items, row, true);
  if (ends.empty()) ends = best_runs(items, row, false);
  for (std::size_t d = 0, i = 0; d < ends.size(); ++d) {
    for (; i < at(ends[d]); ++i) devices[at(row[i])] = static_cast<int>(d) + 1;
  }
  return devices;
}

std::vector<int> max_load_order(const MaxLoadItems& items, int variant) {
  const std::vector<std::vector<int>> sinks = sinks_of_items(items);
  const std::vector<std::vector<int>> sources = reversed(sinks);
  if (variant == 0) return post_order(sources, sinks);
  if (variant == 2) return without_directions(sinks, sources);
  std::vector<int> order = post_order(sinks, sources);
  std::reverse(order.begin(), order.end());
  return order;
}

std::vector<int> best_linear_max_load(const MaxLoadItems& items) {
  std::vector<int> best;
  std::pair<std::int64_t, std::int64_t> least = {kNever, kNever};
  for (int variant = 0; variant < kMaxLoadOrders; ++variant) {
    std::vector<int> devices = linear_max_load(items, max_load_order(items, variant));
    const MaxLoadState state(items, devices);
    const std::pair value(state.excess(), state.max_load());
    if (value < least) least = value, best = std::move(devices);
  }
  return best;
}

}  // namespace agpcs
