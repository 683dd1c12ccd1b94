// SPDX-License-Identifier: Apache-2.0
// The two policies of the paper (sections 4.2 to 4.4), frozen. Flow-tree selection says each round
// which trees may send; workload scheduling picks one workload after another from these trees.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"
#include "planner/flows/method.h"
#include "planner/flows/policy/environment.h"
#include "planner/flows/trees/balanced_forest.h"
#include "planner/policy/perceptron.h"

#include <agpcs/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct FlowPolicy {
  Perceptron trees;      ///< on kTreeFeatureCount features: selects with probability 1 / (1 +
                         ///< exp(-value))
  Perceptron workloads;  ///< on kWorkloadFeatureCount features: takes with probability ~ exp(value)
  std::string made_by;   ///< the command that trained it
};

/// Prints the file: "agpcs-flow-policy 1", `made-by`, then "network trees" and "network workloads",
/// each with its numbers as in a policy of the planner's search (docs/design/policy.md).
std::string print_flow_policy(const FlowPolicy& policy);
/// Parses the file. Errors name file and line.
Result<FlowPolicy> parse_flow_policy(std::string_view text, std::string_view file);
/// Returns planner/flows/policy/flow.policy, which is part of the program.
const FlowPolicy& shipped_flow_policy();

/// Returns the policy that training begins from. It selects all trees, and takes workloads on busy
/// links and those that others wait for first, before links with few choices run out of them. Units
/// beside those of the formula are random.
FlowPolicy formula_flow_policy(int units, std::uint64_t seed);
/// Returns a policy whose numbers are uniform in +-1 / sqrt(features).
FlowPolicy random_flow_policy(int units, std::uint64_t seed);

/// The rule by which a level decides. All but kPolicy are for comparisons.
enum class TreeRule { kPolicy, kAll };
enum class WorkloadRule { kPolicy, kFirstCome, kLongestChain, kRarestFirst };
struct FlowRules {
  TreeRule trees = TreeRule::kPolicy;
  WorkloadRule workloads = WorkloadRule::kPolicy;
  bool detours = true;  ///< `FlowEnvironment::fill_idle`
};

/// Makes the decisions of a frozen policy.
class FlowPlayer {
 public:
  explicit FlowPlayer(const FlowPolicy& policy, const FlowRules& rules = {});
  /// Selects, by tree 0 or 1, trees of positive value, or all if none of these has a ready
  /// workload.
  void select_trees(const FlowEnvironment& environment, std::vector<std::uint8_t>& selected) const;
  /// Takes workloads until none is open, each time the one with the highest value (ties go to the
  /// lower chunk, then server).
  void take_workloads(FlowEnvironment& environment) const;

 private:
  double value_of(std::span<const float> features) const;

  FastPerceptron trees_, workloads_;
  FlowRules rules_;
};

/// Plays one all-reduce (or all-gather) to its end without drawing. Same arguments, same bytes.
FlowSchedule play_policy(const Topology& topology, const FlowForest& forest, FlowPhases phases,
                         const FlowPolicy& policy, const FlowRules& rules = {});

/// Returns a schedule of both phases, the best over 1 to `max_sub_chunks` sub-chunks and `effort`
/// forests of each. With a barrier, the all-gather is played, and then another on reversed links,
/// whose mirror image in time is the reduce-scatter. If every link has a twin, one play serves for
/// both. Without a barrier, both phases overlap in one play, or the schedule with a barrier is
/// moved together if that is better.
FlowSchedule schedule_by_policy(const Topology& topology, const FlowOptions& options,
                                const FlowPolicy& policy, const FlowRules& rules = {},
                                ForestKind kind = ForestKind::kBalanced);

}  // namespace agpcs
