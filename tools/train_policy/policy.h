// SPDX-License-Identifier: Apache-2.0
// What agpcs-train-policy does: episodes in turn over many problems, and a look at problems held
// aside to tell which network is the best.
#pragma once

#include "planner/dqn.h"
#include "planner/q_network.h"
#include "tools/common.h"

#include <agpcs/status.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
}

namespace agpcs {

struct TrainPolicyOptions {
  DqnOptions dqn;
  std::uint64_t seed = 0;
  std::int64_t episodes = 4000;
  int problems = 100;
  std::vector<std::string> models;  ///< ONNX files, or folders of them
  std::string output, from, log;    ///< paths; empty: none
  int threads = 1;
  int validation_problems = 8;
  std::int64_t validate_every = 400;     ///< episodes
  std::int64_t validation_budget = 300;  ///< evaluations a problem
  std::string made_by;                   ///< the command, without what changes no byte
};

/// Reads a command line. Nothing when the command is to go on, else its exit code.
std::optional<int> parse_train_policy(const std::vector<std::string>& args, Console console,
                                      TrainPolicyOptions& options);

/// The option --task, which `agpcs-train-policy` has looked at before.
void add_task(CLI::App& app);
/// The command that was given: its options that change a byte of the policy.
std::string training_command(const CLI::App& app);

struct TrainedPolicy {
  QNetwork network;  ///< with made_by
  std::vector<EpisodeLog> log;
  bool interrupted = false;
};

/// Trains. Once `interrupted` is set it ends with what it has. Same options, same result, for any
/// number of threads. Errors: a model that cannot be read, no LibTorch.
Result<TrainedPolicy> train_policy(const TrainPolicyOptions& options,
                                   const std::atomic<bool>& interrupted, Console console);

/// The command.
int train_policy_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
