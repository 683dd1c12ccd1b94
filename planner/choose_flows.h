// SPDX-License-Identifier: Apache-2.0
// choose_flows: gives a strategy all-reduces along schedules made for the network between a stage's
// devices, if they shorten the simulated step.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

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

/// How all-reduces are chosen: with `kAuto` the fastest of all, otherwise one algorithm for all
/// buckets.
enum class AllReduceChoice : std::uint8_t { kAuto, kRing, kHierarchical, kTree, kFlow };
/// Returns the choice named "auto", "ring", "hierarchical", "tree" or "flow"; nothing for another
/// word.
std::optional<AllReduceChoice> all_reduce_choice_named(std::string_view name);

struct FlowChoiceOptions {
  AllReduceChoice choice = AllReduceChoice::kAuto;
  std::uint64_t seed = 0;
  const std::atomic<bool>* interrupted = nullptr;  ///< true: buckets keep what they have
  std::int64_t effort = 0;                         ///< effort of the methods (`FlowOptions`)
  int threads = 1;                                 ///< change nothing
};

/// The schedules for a network between devices.
struct KnownSchedules {
  std::vector<PlanFlow> flows;  ///< no two alike; they name stage 0
  double at_best = 1;           ///< rounds that the bound allows / rounds of the best schedule
  bool searched = false;
  /// By bytes: the flow that sums them fastest when alone, and its seconds.
  std::map<std::int64_t, std::pair<int, double>> fastest;
};

/// What schedules and their seconds depend on: nodes, ends and units of links, routes; bandwidths
/// and latencies. Groups of devices in equal networks share their schedules.
struct NetworkKey {
  std::vector<std::int64_t> topology;
  std::vector<double> links;
  auto operator<=>(const NetworkKey&) const = default;
};
/// The schedules made so far.
using KnownFlows = std::map<NetworkKey, KnownSchedules>;

/// Groups of at least and at most this many devices are scheduled.
inline constexpr std::size_t kLeastFlowDevices = 3, kMostFlowDevices = 64;

/// Returns the strategy with the all-reduces of `choice`. Its buckets stay as they are; if it has
/// none, the problem groups them.
/// * `kAuto`: for each stage, the instant ones of `flow_methods` make schedules for the topology of
///   its devices, each in several orders (`plan_flows_of`). The search does so, too, where a
///   schedule at the bound would beat what a bucket has. A bucket is offered the schedule that sums
///   it fastest when alone, if that is faster than what it has. All buckets of a stage take their
///   offers if that shortens the simulated step by 0.1% or more; otherwise single buckets do, large
///   ones first. What the step does not need is given back. Stages whose sums could take no time
///   and the step be hardly shorter are left out. If no bucket takes an offer, the strategy comes
///   back unchanged.
/// * another choice: every bucket is reduced by that algorithm, however long it takes. With
///   `kFlow`, buckets without a schedule (it needs kLeastFlowDevices to kMostFlowDevices devices)
///   keep what they have.
/// Stages that divide their state keep what they have.
/// Needs: `strategy` verifies. Deterministic unless interrupted.
/// Cost: that of the methods for each different network, two evaluations a stage, up to 34 more.
Strategy choose_flows(const Problem& problem, Evaluator& evaluator, Strategy strategy,
                      const FlowChoiceOptions& options, KnownFlows& known);

}  // namespace agpcs
