// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "planner/flows/bound.h"
#include "planner/flows/hops.h"
#include "planner/flows/list_schedule.h"
#include "planner/flows/methods.h"
#include "planner/flows/trees/forests.h"
#include "planner/flows/trees/tree_packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kSplits = 3;               // draws of the order in which switches are taken out
constexpr int kNearness = 3;             // the most, for short lanes
constexpr int kAllHops = 512;            // most servers for which short lanes are tried
constexpr std::int64_t kMostTimes = 32;  // times the bound's rounds

/// Returns lanes on which all trees fit: short ones if there are some, else those that use every
/// unit.
std::optional<std::vector<Lane>> fitting_lanes(const Topology& topology,
                                               const std::vector<FlowRoute>& hops, int sub_chunks,
                                               std::int64_t rounds, Rng& rng) {
  for (int nearness = hops.empty() ? 0 : kNearness; nearness > 0; --nearness) {
    auto lanes = short_lanes(topology, hops, rounds, nearness, Rng(rng.next()));
    if (trees_fit(topology.servers, lanes, sub_chunks)) return lanes;
  }
  for (int split = 0; split < kSplits; ++split) {
    auto lanes = split_switches(topology, rounds, Rng(rng.next()));
    if (trees_fit(topology.servers, lanes, sub_chunks)) return lanes;
  }
  return std::nullopt;
}

/// Returns K trees of every root, on what links carry in as few rounds as the lanes found allow,
/// from the bound on. Errors (kInfeasible): they do not fit in kMostTimes times the bound's rounds.
Result<FlowForest> packed_forest(const Topology& topology, int sub_chunks, std::int64_t least,
                                 Rng rng) {
  const auto hops =
      topology.servers <= kAllHops ? shortest_hops(topology, 0, 4) : std::vector<FlowRoute>();
  for (std::int64_t rounds = least; rounds <= kMostTimes * (least + 1); rounds += 1 + rounds / 64) {
    const auto lanes = fitting_lanes(topology, hops, sub_chunks, rounds, rng);
    if (lanes) return pack_trees(topology.servers, *lanes, sub_chunks, Rng(rng.next()));
  }
  return Status(StatusCode::kInfeasible,
                fmt::format("topology '{}': switches split evenly leave no trees within {} rounds",
                            topology.name, kMostTimes * (least + 1)));
}

Result<FlowSchedule> schedule_once(const Topology& topology, const FlowBound& bound, int sub_chunks,
                                   bool barrier, const Rng& rng) {
  AGPCS_TRY(const FlowForest down,
            packed_forest(topology, sub_chunks, bound.exact_all_gather.sub_rounds(sub_chunks),
                          rng.fork("down")));
  FlowForest up = down;
  if (has_equal_twins(topology)) {
    up.routes = on_twins(std::move(up.routes));
  } else {
    AGPCS_TRY(up, packed_forest(reversed(topology), sub_chunks,
                                bound.exact_reduce_scatter.sub_rounds(sub_chunks), rng.fork("up")));
  }
  return list_schedule(topology, joined_both_ways(up, down), barrier, ListOrder::kCritical,
                       rng.fork("order"));
}

}  // namespace

Result<FlowSchedule> schedule_trees(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  Rng rng = Rng(options.seed).fork("trees");
  const FlowBound bound = flow_bound(topology);
  std::optional<FlowSchedule> best;
  for (std::int64_t draw = 0; draw < std::max<std::int64_t>(1, options.effort); ++draw) {
    const Rng drawn = Rng(rng.next());
    for (int k = 1; k <= std::max(1, options.max_sub_chunks); ++k) {
      if (best && options.interrupted != nullptr && options.interrupted->load()) break;
      AGPCS_TRY(FlowSchedule schedule, schedule_once(topology, bound, k, options.barrier, drawn));
      if (!best || schedule.rounds() < best->rounds()) best = std::move(schedule);
    }
  }
  return std::move(*best);
}

}  // namespace agpcs
