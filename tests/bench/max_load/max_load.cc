// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/max_load/max_load.h"

#include "ir/base/at.h"
#include "ir/base/disjoint_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

namespace agpcs {
namespace {

constexpr double kAllTicks = 4503599627370496.0;  // 2^52: sums of loads are exact in a double

Status check_problem(const MaxLoadProblem& problem) {
  const int count = static_cast<int>(problem.nodes.size());
  if (problem.devices < 1) {
    return invalid_input(fmt::format("{} accelerators: at least 1 is needed", problem.devices));
  }
  for (int i = 0; i < count; ++i) {
    const MaxLoadNode& node = problem.nodes[at(i)];
    for (const double figure : {node.time, node.cpu_time, node.size, node.out_cost}) {
      if (!(figure >= 0) || !std::isfinite(figure)) {
        return invalid_input(fmt::format("node {}: {} is no time, cost or size", i, figure));
      }
    }
    if (!node.accelerator && !problem.cpu) {
      return invalid_input(fmt::format("node {} needs a CPU, and there is none", i));
    }
  }
  for (const auto& [from, to] : problem.edges) {
    if (std::min(from, to) < 0 || std::max(from, to) >= count) {
      return invalid_input(fmt::format("edge {} -> {}: there are {} nodes", from, to, count));
    }
  }
  return {};
}

/// Items in the order of their first node.
int number_items(const MaxLoadProblem& problem, std::vector<int>& item_of) {
  std::map<int, int> of_colour;
  int items = 0;
  item_of.clear();
  for (const MaxLoadNode& node : problem.nodes) {
    if (node.colour < 0) {
      item_of.push_back(items++);
    } else {
      const auto [entry, fresh] = of_colour.emplace(node.colour, items);
      items += fresh ? 1 : 0;
      item_of.push_back(entry->second);
    }
  }
  return items;
}

struct RawNet {
  int source;
  std::int64_t cost;
  std::vector<int> sinks;
};

/// Fills in what follows from the nets. Those with the same source and sinks are cut together, and
/// become one.
void add_nets(MaxLoadItems& result, std::vector<RawNet> nets) {
  for (RawNet& net : nets) {
    std::sort(net.sinks.begin(), net.sinks.end());
    net.sinks.erase(std::unique(net.sinks.begin(), net.sinks.end()), net.sinks.end());
    std::erase(net.sinks, net.source);
  }
  std::erase_if(nets, [](const RawNet& net) { return net.sinks.empty() || net.cost == 0; });
  std::sort(nets.begin(), nets.end(), [](const RawNet& a, const RawNet& b) {
    return std::tie(a.source, a.sinks) < std::tie(b.source, b.sinks);
  });
  std::vector<std::vector<int>> reads(result.items.size());
  for (const RawNet& net : nets) {
    MaxLoadNet* last = result.nets.empty() ? nullptr : &result.nets.back();
    if (last != nullptr && last->source == net.source &&
        std::equal(net.sinks.begin(), net.sinks.end(), result.sinks.begin() + last->first_sink,
                   result.sinks.end())) {
      last->cost += net.cost;
      continue;
    }
    const int first = static_cast<int>(result.sinks.size());
    for (const int sink : net.sinks)
      reads[at(sink)].push_back(static_cast<int>(result.nets.size()));
    result.sinks.insert(result.sinks.end(), net.sinks.begin(), net.sinks.end());
    result.nets.push_back({net.source, net.cost, first, static_cast<int>(result.sinks.size())});
  }
  result.first_net.assign(result.items.size() + 1, 0);
  for (const MaxLoadNet& net : result.nets) ++result.first_net[at(net.source) + 1];
  for (std::size_t i = 1; i < result.first_net.size(); ++i) {
    result.first_net[i] += result.first_net[i - 1];
  }
  result.first_read = {0};
  for (const std::vector<int>& row : reads) {
    result.reads.insert(result.reads.end(), row.begin(), row.end());
    result.first_read.push_back(static_cast<int>(result.reads.size()));
  }
}

/// Numbers the sets of `count` members by their least one; returns how many there are.
int number(DisjointSets<>& sets, int count, std::vector<int>& number_of) {
  int numbers = 0;
  number_of.assign(at(count), 0);
  for (int i = 0; i < count; ++i) {
    number_of[at(i)] = sets.find(i) == i ? numbers++ : number_of[at(sets.find(i))];
  }
  return numbers;
}

/// Whether every placement that cuts `net` off from `sink` has a device with `below` or more.
bool too_dear_to_cut(const MaxLoadItems& items, const MaxLoadNet& net, int sink,
                     std::int64_t below) {
  const MaxLoadItem& from = items.items[at(net.source)];
  const MaxLoadItem& to = items.items[at(sink)];
  const bool source_on_accelerator = from.accelerator && from.time + net.cost < below;
  const bool source_on_cpu =
      from.cpu && from.cpu_time < below && to.accelerator && to.time + net.cost < below;
  return !source_on_accelerator && !source_on_cpu;
}

/// The one item with which the best place of `item`, which takes no time, is; -1 if that depends.
int companion(const MaxLoadItems& items, int item) {
  const MaxLoadItem& self = items.items[at(item)];
  if (self.time != 0 || self.cpu_time != 0 || !self.accelerator || !self.cpu) return -1;
  const int made = items.first_net[at(item) + 1] - items.first_net[at(item)];
  const int read = items.first_read[at(item) + 1] - items.first_read[at(item)];
  if (made + read != 1) return -1;
  if (read == 1) return items.nets[at(items.reads[at(items.first_read[at(item)])])].source;
  const MaxLoadNet& net = items.nets[at(items.first_net[at(item)])];
  return net.end_sink - net.first_sink == 1 ? items.sinks[at(net.first_sink)] : -1;
}

}  // namespace

MaxLoadFigures max_load_of(const MaxLoadProblem& problem, const std::vector<int>& device_of_node) {
  MaxLoadFigures figures;
  figures.loads.assign(at(problem.devices) + 1, 0);
  std::vector<double> sizes = figures.loads;
  std::map<int, int> device_of_colour;
  for (std::size_t i = 0; i < problem.nodes.size(); ++i) {
    const MaxLoadNode& node = problem.nodes[i];
    const int device = device_of_node[i];
    if (device < 0 || device > problem.devices ||
        (device == 0 ? !problem.cpu : !node.accelerator)) {
      figures.runs = false;
      continue;
    }
    figures.loads[at(device)] += device == 0 ? node.cpu_time : node.time;
    if (device > 0) sizes[at(device)] += node.size;
    if (node.colour >= 0 && device_of_colour.emplace(node.colour, device).first->second != device) {
      figures.colocated = false;
    }
  }
  std::set<std::pair<int, int>> paid;  // producer, device
  for (const auto& [from, to] : problem.edges) {
    const int source = device_of_node[at(from)], sink = device_of_node[at(to)];
    if (source == sink || !figures.runs) continue;
    for (const int device : {source, sink}) {
      if (device > 0 && paid.emplace(from, device).second) {
        figures.loads[at(device)] += problem.nodes[at(from)].out_cost;
      }
    }
  }
  figures.max_load = *std::max_element(figures.loads.begin(), figures.loads.end());
  figures.fits = *std::max_element(sizes.begin(), sizes.end()) <= problem.capacity;
  return figures;
}

Result<MaxLoadItems> make_max_load_items(const MaxLoadProblem& problem, std::vector<int>& item_of) {
  if (Status status = check_problem(problem); !status) return status;
  MaxLoadItems result;
  result.items.resize(at(number_items(problem, item_of)));
  result.devices = problem.devices;
  double all = 0;
  for (const MaxLoadNode& node : problem.nodes) {
    all += std::max(node.time, node.cpu_time) + node.out_cost;
  }
  result.tick = all > 0 ? all / kAllTicks : 1;
  const auto ticks = [&](double time) { return std::llround(time / result.tick); };
  result.capacity = problem.capacity >= kAllTicks ? static_cast<std::int64_t>(kAllTicks)
                                                  : static_cast<std::int64_t>(problem.capacity);
  std::vector<RawNet> nets;
  for (std::size_t i = 0; i < problem.nodes.size(); ++i) {
    const MaxLoadNode& node = problem.nodes[i];
    MaxLoadItem& item = result.items[at(item_of[i])];
    item.time += ticks(node.time);
    item.cpu_time += ticks(node.cpu_time);
    item.size += static_cast<std::int64_t>(std::ceil(node.size));
    item.accelerator = item.accelerator && node.accelerator;
    item.cpu = problem.cpu;
    nets.push_back({item_of[i], ticks(node.out_cost), {}});
  }
  for (const auto& [from, to] : problem.edges) nets[at(from)].sinks.push_back(item_of[at(to)]);
  add_nets(result, std::move(nets));
  return result;
}

MaxLoadItems join_items(const MaxLoadItems& items, const std::vector<int>& group_of, int groups) {
  MaxLoadItems result;
  result.items.resize(at(groups));
  result.devices = items.devices;
  result.capacity = items.capacity;
  result.tick = items.tick;
  for (std::size_t i = 0; i < items.items.size(); ++i) {
    MaxLoadItem& group = result.items[at(group_of[i])];
    group.time += items.items[i].time;
    group.cpu_time += items.items[i].cpu_time;
    group.size += items.items[i].size;
    group.accelerator = group.accelerator && items.items[i].accelerator;
    group.cpu = group.cpu && items.items[i].cpu;
  }
  std::vector<RawNet> nets;
  for (const MaxLoadNet& net : items.nets) {
    RawNet& raw = nets.emplace_back(RawNet{group_of[at(net.source)], net.cost, {}});
    for (int i = net.first_sink; i < net.end_sink; ++i) {
      raw.sinks.push_back(group_of[at(items.sinks[at(i)])]);
    }
  }
  add_nets(result, std::move(nets));
  return result;
}

MaxLoadItems join_inseparable(const MaxLoadItems& items, std::int64_t below,
                              std::vector<int>& group_of) {
  MaxLoadItems result = items;
  std::int64_t sizes = 0;
  for (const MaxLoadItem& item : items.items) sizes += item.size;
  const bool plenty = sizes <= items.capacity;
  group_of.resize(at(items.size()));
  std::iota(group_of.begin(), group_of.end(), 0);
  int before = 0;
  while (result.size() != before) {  // what grows may become inseparable
    before = result.size();
    DisjointSets<> groups(at(before));
    for (const MaxLoadNet& net : result.nets) {
      for (int i = net.first_sink; i < net.end_sink; ++i) {
        const int sink = result.sinks[at(i)];
        if (too_dear_to_cut(result, net, sink, below)) groups.join(net.source, sink);
      }
    }
    for (int i = 0; plenty && i < before; ++i) {
      if (const int other = companion(result, i); other >= 0) groups.join(i, other);
    }
    std::vector<int> joined;
    const int count = number(groups, before, joined);
    result = join_items(result, joined, count);
    for (int& group : group_of) group = joined[at(group)];
  }
  return result;
}

std::int64_t max_load_bound(const MaxLoadItems& items) {
  double most = 0, total = 0, least_ratio = 1e30;
  for (const MaxLoadItem& item : items.items) {
    const double accelerator = item.accelerator ? static_cast<double>(item.time) : 1e30;
    const double cpu = item.cpu ? static_cast<double>(item.cpu_time) : 1e30;
    most = std::max(most, std::min(accelerator, cpu));
    if (item.accelerator) total += static_cast<double>(item.time);
    if (item.accelerator && item.cpu && item.time > 0) {
      least_ratio = std::min(least_ratio, cpu / accelerator);
    }
  }
  // While the CPU works for L, it takes at most L / least_ratio off the accelerators.
  const double help = least_ratio > 0 ? 1 / least_ratio : 1e30;
  const double spread = total / (static_cast<double>(items.devices) + help);
  return static_cast<std::int64_t>(std::max(most, spread));
}

}  // namespace agpcs
