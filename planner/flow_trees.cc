// SPDX-License-Identifier: Apache-2.0
#include "ir/rng.h"
#include "planner/flow_bound.h"
#include "planner/flow_forests.h"
#include "planner/flow_methods.h"
#include "planner/list_schedule.h"
#include "planner/tree_packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kDraws =
    4;  // of the order in which switches are taken out, for each number of rounds
constexpr std::int64_t kMostTimes = 32;

/// K trees of every root on what links carry in as few rounds as even splitting allows, from the
/// bound on. Errors (kInfeasible): in so many times the bound's rounds they do not fit.
Result<FlowForest> packed_forest(const Topology& topology, int sub_chunks, std::int64_t least,
                                 Rng rng) {
  for (std::int64_t rounds = least; rounds <= kMostTimes * (least + 1); rounds += 1 + rounds / 64) {
    for (int draw = 0; draw < kDraws; ++draw) {
      const std::vector<Lane> lanes = split_switches(topology, rounds, Rng(rng.next()));
      if (!trees_fit(topology.servers, lanes, sub_chunks)) continue;
      return pack_trees(topology.servers, lanes, sub_chunks, Rng(rng.next()));
    }
  }
  return Status(StatusCode::kInfeasible,
                fmt::format("topology '{}': switches split evenly leave no trees within {} rounds",
                            topology.name, kMostTimes * (least + 1)));
}

/// The same trees over the links that lead back.
FlowForest on_twins(FlowForest forest) {
  for (FlowRoute& route : forest.routes) {
    for (int& link : route.links) link ^= 1;
  }
  return forest;
}

}  // namespace

Result<FlowSchedule> schedule_trees(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  const Rng rng = Rng(options.seed).fork("trees");
  const FlowBound bound = flow_bound(topology);
  const bool twins = has_equal_twins(topology);
  std::optional<FlowSchedule> best;
  for (int k = 1; k <= std::max(1, options.max_sub_chunks); ++k) {
    if (best && options.interrupted != nullptr && options.interrupted->load()) break;
    AGPCS_TRY(const FlowForest down,
              packed_forest(topology, k, bound.exact_all_gather.sub_rounds(k), rng.fork("down")));
    AGPCS_TRY(const FlowForest up,
              twins ? Result<FlowForest>(on_twins(down))
                    : packed_forest(reversed(topology), k, bound.exact_reduce_scatter.sub_rounds(k),
                                    rng.fork("up")));
    FlowSchedule schedule = list_schedule(topology, joined_both_ways(up, down), options.barrier,
                                          ListOrder::kLongestChain, rng.fork("order"));
    if (!best || schedule.rounds() < best->rounds()) best = std::move(schedule);
  }
  return std::move(*best);
}

}  // namespace agpcs
