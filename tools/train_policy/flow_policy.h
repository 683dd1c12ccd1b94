// SPDX-License-Identifier: Apache-2.0
// agpcs-train-policy --task allreduce: trains by Algorithm 1 of the paper over many small
// topologies.
#pragma once

#include "ir/cluster/topology.h"
#include "planner/learn/flow_trainer.h"
#include "tools/common/common.h"

#include <agpcs/status.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

struct TrainFlowPolicyOptions {
  FlowTrainingOptions training;
  std::uint64_t seed = 0;
  std::int64_t iterations = 300;     ///< I of Algorithm 1
  std::int64_t tree_steps = 1;       ///< J: forests per turn of flow-tree selection
  std::int64_t workload_steps = 3;   ///< K: forests per turn of workload scheduling
  std::int64_t validate_every = 20;  ///< iterations
  std::string output, from, log;     ///< paths; empty: none
  std::string made_by;               ///< the command, without options that change no byte
};

/// Reads a command line. Returns nullopt if the command is to go on, else its exit code.
std::optional<int> parse_train_flow_policy(const std::vector<std::string>& args, Console console,
                                           TrainFlowPolicyOptions& options);

/// Draws a topology to train on: BCube, DCell or Jellyfish with 6 to 16 servers. In a third of them
/// cables have failed; in another third links carry 1 to 3 units.
Topology draw_training_topology(std::int64_t index, std::uint64_t seed);
/// Returns the topologies held aside to choose the best policy: larger ones of the same families.
std::vector<Topology> validation_topologies();
/// Returns the mean over the topologies of rounds / the rounds that the forest's heaviest link
/// needs.
double validate_flow_policy(const FlowPolicy& policy, const std::vector<Topology>& topologies);

struct TrainedFlowPolicy {
  FlowPolicy policy;  ///< its made_by is set
  std::string log;    ///< CSV
  bool interrupted = false;
};
/// Trains. Once `interrupted` is set it ends with the best policy so far. Equal options give equal
/// results.
Result<TrainedFlowPolicy> train_flow_policy(const TrainFlowPolicyOptions& options,
                                            const std::atomic<bool>& interrupted, Console console);

/// Runs the command.
int train_flow_policy_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
