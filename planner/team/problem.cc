// SPDX-License-Identifier: Apache-2.0
#include "planner/team/problem.h"

#include "ir/graph/op_table.h"

#include <algorithm>
#include <utility>

namespace agpcs {

TeamCosts roofline_costs(const Graph& graph, TeamSpeeds speeds, std::int64_t samples,
                         Precision precision) {
  const auto members = static_cast<double>(speeds.flops.size());
  const double link = speeds.link, latency = speeds.latency;
  TeamCosts costs;
  costs.compute = [&graph, speeds = std::move(speeds), samples, precision](
                      OpId op, std::size_t member, double part) {
    const OpCost cost = op_cost(graph, op, samples, precision);
    const double flops = speeds.flops[member], memory = speeds.memory[member];
    return part * (std::max(cost.forward_flops / flops, cost.forward_bytes / memory) +
                   std::max(cost.backward_flops / flops, cost.backward_bytes / memory));
  };
  costs.exchange = [members, link, latency](TeamExchange exchange, std::int64_t bytes) {
    const double rounds = exchange == TeamExchange::kAllReduce ? 2 * (members - 1) : members - 1;
    // In an all-to-all, a member sends of its own part alone.
    const double piece = static_cast<double>(bytes) /
                         (exchange == TeamExchange::kAllToAll ? members * members : members);
    return rounds * (latency + piece / link);
  };
  return costs;
}

}  // namespace agpcs
