// SPDX-License-Identifier: Apache-2.0
// choose_flows: all-reduces along schedules made for the network between a stage's devices, where a
// simulated step is shorter by them.
#pragma once

#include "ir/strategy.h"
#include "planner/evaluator.h"
#include "planner/problem.h"

#include <agpcs/types.h>

#include <atomic>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// How all-reduces are chosen: `kAuto` the fastest of all, or one algorithm for all buckets.
enum class AllReduceChoice : std::uint8_t { kAuto, kRing, kHierarchical, kTree, kFlow };
/// "auto", "ring", "hierarchical", "tree", "flow"; nothing for another word.
std::optional<AllReduceChoice> all_reduce_choice_named(std::string_view name);

struct FlowChoiceOptions {
  AllReduceChoice choice = AllReduceChoice::kAuto;
  std::uint64_t seed = 0;
  const std::atomic<bool>* interrupted = nullptr;  ///< true: buckets keep what they have
  std::int64_t effort = 0;                         ///< of the methods (`FlowOptions`)
};

/// Schedules for a network between devices.
struct KnownSchedules {
  std::vector<PlanFlow> flows;  ///< no two alike; of stage 0
  double at_best = 1;           ///< rounds that the bound leaves possible, of the fewest found
  bool searched = false;
  /// By bytes: the flow that sums them soonest when alone, and its seconds.
  std::map<std::int64_t, std::pair<int, double>> fastest;
};

/// What schedules and their seconds depend on, so that groups of devices in networks that are alike
/// share them: nodes, ends and units of links, routes; bandwidths and latencies.
struct NetworkKey {
  std::vector<std::int64_t> topology;
  std::vector<double> links;
  auto operator<=>(const NetworkKey&) const = default;
};
/// Schedules made so far.
using KnownFlows = std::map<NetworkKey, KnownSchedules>;

/// Groups of so many devices are scheduled.
inline constexpr std::size_t kLeastFlowDevices = 3, kMostFlowDevices = 64;

/// The strategy with the all-reduces of `choice`, its buckets as they are or, where it has none, as
/// the problem groups them.
/// - `kAuto`: for each stage the methods of `flow_methods` that are instant, and the search where a
///   schedule at the bound would beat what a bucket has, make schedules for
///   the topology of its devices, each in several orders (`plan_flows_of`); a bucket is offered the
///   one that sums it fastest when alone, if that is faster than what it has. All buckets of a
///   stage take their offers if the simulated step gets shorter by 0.1% or more, else single ones,
///   large ones first; what the step does not need is given back. Unless a bucket takes one, the
///   strategy comes back unchanged.
/// - another: every bucket is reduced so, whatever it takes; by `kFlow` where there is a schedule
///   (kLeastFlowDevices to kMostFlowDevices devices), the others keep what they have.
/// Needs: `strategy` verifies. Deterministic unless interrupted.
/// Cost: that of the methods for each network that is unlike the others, an evaluation a stage, and
/// up to 34 more.
Strategy choose_flows(const Problem& problem, Evaluator& evaluator, Strategy strategy,
                      const FlowChoiceOptions& options, KnownFlows& known);

}  // namespace agpcs
