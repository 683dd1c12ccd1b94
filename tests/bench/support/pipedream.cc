// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/pipedream.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>

namespace agpcs {
namespace {

struct Node {
  double forward = 0, backward = 0;  // seconds
  std::int64_t bytes = 0;
  std::vector<int> next;
  int waits = 0;  // for how many nodes before it
};
using Nodes = std::map<int, Node>;  // by number

/// After `name` in `line`.
double field(const std::string& line, const std::string& name) {
  return std::strtod(line.c_str() + line.find(name) + name.size(), nullptr);
}

int number_of(const std::string& node) { return std::stoi(node.substr(4)); }  // "node12"

/// "node12 -- Conv2d(...) -- forward_compute_time=1.2, ...", then "\tnode12 -- node13".
Nodes read_graph(const std::filesystem::path& path) {
  std::ifstream file(path);
  Nodes nodes;
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t dashes = line.find(" -- ");
    if (dashes == std::string::npos) continue;
    if (line.front() == '\t') {
      const int to = number_of(line.substr(dashes + 4));
      nodes[number_of(line.substr(1))].next.push_back(to);
      ++nodes[to].waits;
      continue;
    }
    Node& node = nodes[number_of(line)];
    node.bytes = static_cast<std::int64_t>(field(line, "parameter_size="));
    if (line.compare(dashes + 4, 5, "Input") == 0) continue;
    node.forward = field(line, "forward_compute_time=") * 1e-3;
    node.backward = field(line, "backward_compute_time=") * 1e-3;
  }
  return nodes;
}

}  // namespace

ProfiledModel read_pipedream(const std::filesystem::path& path) {
  Nodes nodes = read_graph(path);
  std::set<int> ready;
  for (const auto& [number, node] : nodes) {
    if (node.waits == 0) ready.insert(number);
  }
  std::vector<const Node*> order;
  ProfiledModel model;
  while (!ready.empty()) {
    const Node& node = nodes[*ready.begin()];
    ready.erase(ready.begin());
    order.push_back(&node);
    model.compute += node.forward;
    for (const int next : node.next) {
      if (--nodes[next].waits == 0) ready.insert(next);
    }
  }
  for (std::size_t i = order.size(); i-- > 0;) {
    model.compute += order[i]->backward;
    model.backward.push_back(order[i]->backward);
    if (order[i]->bytes > 0) model.gradients.push_back({model.compute, order[i]->bytes, 0});
  }
  return model;
}

}  // namespace agpcs
