// SPDX-License-Identifier: Apache-2.0
// Trains the policy of agpcs-train-policy: runs episodes on many problems in turn, and compares
// networks on problems held aside to keep the best one.
#pragma once

#include "ir/base/named.h"
#include "planner/refine/dqn.h"
#include "planner/refine/q_network.h"
#include "tools/common/common.h"

#include <agpcs/status.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
}

namespace agpcs {

/// The command, as it names itself in messages.
inline constexpr char kTrainPolicyCommand[] = "agpcs-train-policy";

/// The generated problems that a policy is trained on.
enum class ProblemSet { kUsual, kTight, kBoth };
struct ProblemSetEntry {
  ProblemSet value;
  std::string_view name, help;
};
inline constexpr std::array<ProblemSetEntry, 3> kProblemSets = {{
    {ProblemSet::kUsual, "usual", "models and clusters of many families"},
    {ProblemSet::kTight, "tight", "unequal layers, little memory, slow and unequal links"},
    {ProblemSet::kBoth, "both", "in turn"},
}};
static_assert(is_in_order(kProblemSets));

struct TrainPolicyOptions {
  DqnOptions dqn;
  std::uint64_t seed = 0;
  std::int64_t episodes = 4000;
  int problems = 100;
  ProblemSet problem_set = ProblemSet::kUsual;
  std::vector<std::string> models;  ///< ONNX files, or folders of them
  std::string output, from, log;    ///< paths; empty: none
  int threads = 1;
  int validation_problems = 8;
  std::int64_t validate_every = 400;     ///< episodes
  std::int64_t validation_budget = 300;  ///< evaluations per problem
  std::string made_by;                   ///< the command, without options that change no byte
};

/// Reads a command line. Returns nullopt if the command is to go on, else its exit code.
std::optional<int> parse_train_policy(const std::vector<std::string>& args, Console console,
                                      TrainPolicyOptions& options);

/// Adds the option --task, which `agpcs-train-policy` has handled before.
void add_task(CLI::App& app);
/// Returns the given command, with only those options that change a byte of the policy.
std::string training_command(const CLI::App& app);

struct TrainedPolicy {
  QNetwork network;  ///< its made_by is set
  std::vector<EpisodeLog> log;
  bool interrupted = false;
};

/// Trains. Once `interrupted` is set it ends with what it has. Equal options give equal results,
/// for any number of threads. Errors: a model that cannot be read, no LibTorch.
Result<TrainedPolicy> train_policy(const TrainPolicyOptions& options,
                                   const std::atomic<bool>& interrupted, Console console);

/// Runs the command.
int train_policy_command(const std::vector<std::string>& args, Console console);

}  // namespace agpcs
