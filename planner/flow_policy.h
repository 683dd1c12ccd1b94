// SPDX-License-Identifier: Apache-2.0
// The two policies of the paper (sections 4.2 to 4.4), frozen: flow-tree selection says each round
// which trees may send, workload scheduling picks one workload after another among theirs.
#pragma once

#include "cost_model/flow_schedule.h"
#include "cost_model/round_simulator.h"
#include "ir/topology.h"
#include "planner/balanced_forest.h"
#include "planner/flow_environment.h"
#include "planner/flow_method.h"
#include "planner/perceptron.h"

#include <agpcs/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct FlowPolicy {
  Perceptron trees;      ///< of kTreeFeatureCount: selected with probability 1 / (1 + exp(-value))
  Perceptron workloads;  ///< of kWorkloadFeatureCount: taken with probability ~ exp(value)
  std::string made_by;   ///< the command that trained it
};

/// The file: "agpcs-flow-policy 1", `made-by`, then "network trees" and "network workloads", each
/// with its numbers as in a policy of the planner's search (docs/policy.md).
std::string print_flow_policy(const FlowPolicy& policy);
/// Errors name file and line.
Result<FlowPolicy> parse_flow_policy(std::string_view text, std::string_view file);
/// planner/flow.policy, part of the program.
const FlowPolicy& shipped_flow_policy();

/// What training begins from: all trees; workloads on busy links and those that others wait for
/// first, before links with few choices run out of them. Units beside the formula's are random.
FlowPolicy formula_flow_policy(int units, std::uint64_t seed);
/// Uniform in +-1 / sqrt(features) everywhere.
FlowPolicy random_flow_policy(int units, std::uint64_t seed);

/// How a level decides; all but kPolicy are there to compare with.
enum class TreeRule { kPolicy, kAll };
enum class WorkloadRule { kPolicy, kFirstCome, kLongestChain, kRarestFirst };
struct FlowRules {
  TreeRule trees = TreeRule::kPolicy;
  WorkloadRule workloads = WorkloadRule::kPolicy;
  bool detours = true;  ///< `FlowEnvironment::fill_idle`
};

/// The decisions of a frozen policy.
class FlowPlayer {
 public:
  explicit FlowPlayer(const FlowPolicy& policy, const FlowRules& rules = {});
  /// Trees of positive value; all, where none of those has a workload ready. By tree: 0 or 1.
  void select_trees(const FlowEnvironment& environment, std::vector<std::uint8_t>& selected) const;
  /// Takes workloads until none is open, each time the one of the highest value (ties: lower chunk,
  /// then server).
  void take_workloads(FlowEnvironment& environment) const;

 private:
  double value_of(std::span<const float> features) const;

  FastPerceptron trees_, workloads_;
  FlowRules rules_;
};

/// One all-reduce (or all-gather) from beginning to end, nothing drawn. Same arguments, same bytes.
FlowSchedule play_policy(const Topology& topology, const FlowForest& forest, FlowPhases phases,
                         const FlowPolicy& policy, const FlowRules& rules = {});

/// A schedule of both phases. With a barrier: the all-gather is played, and again on reversed links
/// for the reduce-scatter, which is its mirror image in time; once where every link has a twin.
/// Without: both phases overlap in one play, or the above moved together if that is better. The
/// best over 1 to `max_sub_chunks` sub-chunks and `effort` forests of each.
FlowSchedule schedule_by_policy(const Topology& topology, const FlowOptions& options,
                                const FlowPolicy& policy, const FlowRules& rules = {},
                                ForestKind kind = ForestKind::kBalanced);

}  // namespace agpcs
