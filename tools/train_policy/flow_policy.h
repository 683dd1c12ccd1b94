// SPDX-License-Identifier: Apache-2.0
// agpcs-train-policy --task allreduce: Algorithm 1 of the paper over many small topologies.
#pragma once

#include "ir/topology.h"
#include "planner/flow_trainer.h"
#include "tools/common.h"

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
  std::int64_t tree_steps = 1;       ///< J: forests a turn of flow-tree selection
  std::int64_t workload_steps = 3;   ///< K: forests a turn of workload scheduling
  std::int64_t validate_every = 20;  ///< iterations
  std::string output, from, log;     ///< paths; empty: none
  std::string made_by;               ///< the command, without what changes no byte
};

/// Reads a command line. Nothing when the command is to go on, else its exit code.
std::optional<int> parse_train_flow_policy(const std::vector<std::string>& args, Console console,
                                           TrainFlowPolicyOptions& options);

/// A topology to train on: BCube, DCell or Jellyfish of 6 to 16 servers; of every third, cables
/// have failed; of every third, links carry 1 to 3 units.
Topology draw_training_topology(std::int64_t index, std::uint64_t seed);
/// Held aside to tell which policy is the best: larger ones of the same families.
std::vector<Topology> validation_topologies();
/// Mean over those of rounds over what the forest's heaviest link needs.
double validate_flow_policy(const FlowPolicy& policy, const std::vector<Topology>& topologies);

struct TrainedFlowPolicy {
  FlowPolicy policy;  ///< with made_by
  std::string log;    ///< CSV
  bool interrupted = false;
};
/// Trains. Once `interrupted` is set it ends with the best so far. Same options, same result.
Result<TrainedFlowPolicy> train_flow_policy(const TrainFlowPolicyOptions& options,
                                            const std::atomic<bool>& interrupted, Console console);

/// The command.
int train_flow_policy_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
