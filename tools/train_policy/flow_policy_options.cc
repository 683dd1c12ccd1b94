// SPDX-License-Identifier: Apache-2.0
#include "tools/common/option_checks.h"
#include "tools/train_policy/flow_policy.h"
#include "tools/train_policy/policy.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace agpcs {
namespace {

constexpr char kAllReduceExamples[] =
    "  agpcs-train-policy --task allreduce -o my.policy --seed 1 --log training.csv\n"
    "  agpcs-train-policy --task allreduce -o my.policy --rounds-weight 10\n"
    "\n"
    "Exit codes: 0 policy written, 1 input wrong, 2 usage, 130 interrupted, what was learned is "
    "written, 70 our bug\n";

template <typename T>
void add(CLI::App& app, const std::string& name, T& value, const std::string& help, double least,
         double most) {
  app.add_option(name, value, help)
      ->capture_default_str()
      ->check(CLI::Range(least, most, fmt::format("a number from {} to {}", least, most)));
}

void add_options(CLI::App& app, TrainFlowPolicyOptions& o) {
  FlowTrainingOptions& t = o.training;
  app.add_option("-o,--output", o.output, "policy to write; - is standard output")->required();
  app.add_option("--seed", o.seed, "of everything random")
      ->capture_default_str()
      ->check(at_least(0));
  add(app, "--iterations", o.iterations, "I of Algorithm 1", 1, 1e9);
  add(app, "--tree-steps", o.tree_steps, "J: forests a turn of flow-tree selection", 0, 1e6);
  add(app, "--workload-steps", o.workload_steps, "K: forests a turn of workload scheduling", 0,
      1e6);
  add(app, "--episodes", t.episodes, "drawn of a forest, then learned from", 2, 1e6);
  add(app, "--epochs", t.epochs, "gradient steps on them", 1, 1e6);
  add(app, "--validate-every", o.validate_every, "iterations", 1, 1e9);
  add(app, "--hidden-units", t.hidden_units, "of each network, where it is trained anew", 1, 4096);
  add(app, "--learning-rate", t.learning_rate, "of Adam", 0, 1);
  add(app, "--averaging", t.averaging, "what a step leaves of the mean of the networks before", 0,
      1);
  add(app, "--discount", t.rewards.discount, "of a reward one round later", 0, 1);
  add(app, "--rounds-weight", t.rewards.rounds_weight,
      "not in the paper: reward in the end, minus that x (rounds / bound - 1)", 0, 1e6);
  add(app, "--clip", t.objective.clip, "of the ratio of probabilities", 0, 1);
  add(app, "--entropy", t.objective.entropy, "weight of the entropy of choices", 0, 1e6);
  app.add_flag("!--random-start", t.guess, "begin with random networks, as the paper does");
  app.add_option("--from", o.from, "policy to go on from");
  app.add_option("--log", o.log, "CSV to write, one line a forest");
  add_config_option(app);
}

}  // namespace

std::optional<int> parse_train_flow_policy(const std::vector<std::string>& args, Console console,
                                           TrainFlowPolicyOptions& options) {
  CLI::App app(
      "Trains the two policies that schedule an all-reduce: flow-tree selection and workload "
      "scheduling, in turn.",
      kTrainPolicyCommand);
  add_task(app);
  add_options(app, options);
  add_help(app, kAllReduceExamples);
  if (const auto code = parse_arguments(app, args, console)) return code;
  options.made_by = training_command(app);
  if (options.output != options.from) return {};
  return finish({StatusCode::kUsage, fmt::format("the policy would overwrite '{}'", options.from)},
                kTrainPolicyCommand, console);
}

}  // namespace agpcs
