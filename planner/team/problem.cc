// SPDX-License-Identifier: Apache-2.0
#include "planner/team/problem.h"

#include "ir/graph/op_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

namespace agpcs {

TeamCosts roofline_costs(const Graph& graph, TeamSpeeds speeds, std::int64_t samples,
                         Precision precision) {
  const auto members = static_cast<double>(speeds.flops.size());
  const double link = speeds.link, latency = speeds.latency;
  TeamCosts costs;
  const std::vector<double> bandwidths = speeds.memory;
  costs.compute = [&graph, speeds = std::move(speeds), samples, precision](
                      const MemberOp& of, std::size_t member, double part) {
    const OpCost cost = op_cost(graph, of.op, samples, precision);
    const double flops = speeds.flops[member], memory = speeds.memory[member];
    return part * (std::max(cost.forward_flops / flops, cost.forward_bytes / memory) +
                   std::max(cost.backward_flops / flops, cost.backward_bytes / memory));
  };
  costs.exchange = [members, link, latency, bandwidths](const TeamTraffic& traffic) {
    double copying = 0;
    for (std::size_t m = 0; m < traffic.copied.size(); ++m) {
      copying = std::max(copying, static_cast<double>(traffic.copied[m]) / bandwidths[m]);
    }
    if (!is_collective(traffic.exchange)) return copying;
    const bool all_reduce = traffic.exchange == TeamExchange::kAllReduce;
    const double rounds = all_reduce ? 2 * (members - 1) : members - 1;
    const double bytes = static_cast<double>(
        std::accumulate(traffic.bytes.begin(), traffic.bytes.end(), std::int64_t{0}));
    // In an all-to-all, a member sends of its own part alone.
    const bool all_to_all = traffic.exchange == TeamExchange::kAllToAll;
    return copying + rounds * (latency + bytes / (all_to_all ? members * members : members) / link);
  };
  return costs;
}

}  // namespace agpcs
