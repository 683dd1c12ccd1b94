// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/rings/part.h"

#include "ir/base/at.h"

namespace agpcs {

FlowRoute FlowPart::whole(const FlowRoute& route) const {
  FlowRoute result = {servers[at(route.from)], servers[at(route.to)], {}};
  for (const int l : route.links) result.links.push_back(links[at(l)]);
  return result;
}

FlowPart part_of(const Topology& whole, const std::vector<int>& servers,
                 const std::vector<std::int64_t>& units) {
  FlowPart part;
  part.servers = servers;
  part.topology.name = whole.name;
  part.topology.servers = static_cast<int>(servers.size());
  part.topology.switches = whole.switches;
  std::vector<int> number(at(whole.nodes()), -1);
  for (std::size_t i = 0; i < servers.size(); ++i) number[at(servers[i])] = static_cast<int>(i);
  for (int w = whole.servers; w < whole.nodes(); ++w) {
    number[at(w)] = part.topology.servers + w - whole.servers;
  }
  part.topology.node_names.resize(at(part.topology.nodes()));
  for (int l = 0; l < static_cast<int>(whole.links.size()); ++l) {
    const Topology::Link& link = whole.links[at(l)];
    if (units[at(l)] < 1 || number[at(link.from)] < 0 || number[at(link.to)] < 0) continue;
    part.topology.links.push_back({number[at(link.from)], number[at(link.to)], units[at(l)]});
    part.links.push_back(l);
  }
  return part;
}

}  // namespace agpcs
