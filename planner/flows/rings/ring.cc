// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "planner/flows/list_schedule.h"
#include "planner/flows/methods.h"
#include "planner/flows/trees/forests.h"

#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns, by server, the hops to the next server by number, over others if they are no
/// neighbours.
std::vector<std::vector<FlowRoute>> ring_steps(const Topology& topology, Rng rng) {
  std::vector<std::vector<FlowRoute>> steps;
  for (int s = 0; s < topology.servers; ++s) {
    const int next = (s + 1) % topology.servers;
    const ShortestWays ways(topology, s, Rng(rng.next()));
    std::vector<FlowRoute>& hops = steps.emplace_back();
    for (int at = next; at != s; at = hops.front().from) {
      hops.insert(hops.begin(), ways.last_hop(at));
    }
  }
  return steps;
}

}  // namespace

// Spreads a chunk along the walk round the ring from its owner. A server that relays it has it from
// then on, and does not get it again. The chunk is gathered along the same walk towards the owner:
// a server sends when the walk leaves it for the last time.
Result<FlowSchedule> schedule_ring(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  const Rng rng = Rng(options.seed).fork("ring");
  const auto steps = ring_steps(topology, rng.fork("ways"));
  FlowForest forest = {topology.servers, 1, {}, {}};
  RouteTable routes;
  std::vector<std::vector<std::int32_t>> numbers;
  for (const auto& hops : steps) {
    numbers.emplace_back();
    for (const FlowRoute& hop : hops) {
      numbers.back().push_back(routes.number_of(hop.from, hop.to, hop.links));
    }
  }
  const auto servers = static_cast<std::size_t>(topology.servers);
  for (std::size_t owner = 0; owner < servers; ++owner) {
    FlowTree tree = {static_cast<int>(owner), std::vector<std::int32_t>(servers, -1),
                     std::vector<std::int32_t>(servers, -1)};
    for (std::size_t i = 0; i < servers; ++i) {
      const std::size_t at = (owner + i) % servers;
      for (std::size_t h = 0; h < steps[at].size(); ++h) {
        const auto from = static_cast<std::size_t>(steps[at][h].from);
        const auto to = static_cast<std::size_t>(steps[at][h].to);
        if (to != owner && i + 1 < servers && tree.down[to] < 0) tree.down[to] = numbers[at][h];
        if (from != owner && i > 0) tree.up[from] = numbers[at][h];
      }
    }
    forest.trees.push_back(std::move(tree));
  }
  forest.routes = routes.take();
  return list_schedule(topology, forest, options.barrier, ListOrder::kFirstCome, rng.fork("order"));
}

}  // namespace agpcs
