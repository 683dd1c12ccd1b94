// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/fabric.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace agpcs {
namespace {

/// Groups of GPUs: `at(i)` is the first member of the group of i.
class Groups {
 public:
  explicit Groups(std::size_t count) : parents_(count) {
    std::iota(parents_.begin(), parents_.end(), std::size_t{0});
  }
  std::size_t at(std::size_t i) const {
    while (parents_[i] != i) i = parents_[i];
    return i;
  }
  void join(std::size_t a, std::size_t b) {
    const std::size_t x = at(a), y = at(b);
    parents_[std::max(x, y)] = std::min(x, y);
  }

 private:
  std::vector<std::size_t> parents_;
};

}  // namespace

Fabric fabric_of(const std::vector<FoundGpu>& gpus) {
  Fabric fabric;
  Groups groups(gpus.size());
  std::map<std::string, std::size_t> by_bus;
  for (std::size_t i = 0; i < gpus.size(); ++i) by_bus.try_emplace(gpus[i].bus, i);
  std::map<std::pair<std::size_t, std::size_t>, double> pairs;
  std::size_t on_switch = gpus.size();  // one GPU that has a switch: all switches are one
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    double port = 0;
    const double each = link_bandwidth(gpus[i]);
    for (const FoundLink& link : gpus[i].links) {
      const auto to = by_bus.find(link.target);
      if (link.to == FoundLink::To::kSwitch) {
        if (on_switch == gpus.size()) on_switch = i;
        groups.join(i, on_switch);
        fabric.switched = true;
      } else if (to == by_bus.end() || to->second == i) {
        continue;
      } else {
        groups.join(i, to->second);
        double& pair = pairs[{std::min(i, to->second), std::max(i, to->second)}];
        pair = std::max(pair, each * link.count);  // both ends list it
      }
      port += each * link.count;
      fabric.any = true;
    }
    fabric.least_port = i == 0 ? port : std::min(fabric.least_port, port);
    fabric.most_port = std::max(fabric.most_port, port);
  }
  std::map<std::size_t, std::vector<int>> islands;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    islands[groups.at(i)].push_back(static_cast<int>(i));
    for (std::size_t j = i + 1; j < gpus.size(); ++j) {
      ++fabric.pairs;
      const auto pair = pairs.find({i, j});
      if (pair == pairs.end()) {
        if (fabric.first < 0) {
          fabric.first = static_cast<int>(i);
          fabric.second = static_cast<int>(j);
        }
        continue;
      }
      const bool is_first = fabric.linked_pairs++ == 0;
      fabric.least_pair = is_first ? pair->second : std::min(fabric.least_pair, pair->second);
      fabric.most_pair = std::max(fabric.most_pair, pair->second);
    }
  }
  for (auto& [first, members] : islands) fabric.islands.push_back(std::move(members));
  fabric.joins_all = fabric.any && fabric.islands.size() == 1;
  return fabric;
}

}  // namespace agpcs
