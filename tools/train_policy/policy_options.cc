// SPDX-License-Identifier: Apache-2.0
#include "tools/common/dqn_options.h"
#include "tools/common/option_checks.h"
#include "tools/train_policy/policy.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <set>

namespace agpcs {
namespace {

constexpr char kExamples[] =
    "  agpcs-train-policy -o my.policy --models my_models --seed 1\n"
    "  agpcs-train-policy -o better.policy --from my.policy --first-epsilon 0.3\n"
    "  agpcs-train-policy -o my.policy --config settings.toml --log training.csv\n"
    "  agpcs-train-policy --task allreduce --help\n"
    "\n"
    "Exit codes: 0 policy written, 1 input wrong, 2 usage, 130 interrupted, what was learned is "
    "written, 70 our bug\n";

constexpr double kMost = 1e9;

const CLI::Range kFromOne(1.0, kMost, "a whole number from 1");
const CLI::Range kFromZero(0.0, kMost, "a whole number from 0");

void add_training_options(CLI::App& app, TrainPolicyOptions& o) {
  app.add_option("-o,--output", o.output, "policy to write; - is standard output")->required();
  app.add_option("--seed", o.seed, "of everything random")
      ->capture_default_str()
      ->check(at_least(0));
  app.add_option("--episodes", o.episodes, "of training, in turn over the problems")
      ->capture_default_str()
      ->check(kFromOne);
  app.add_option("--problems", o.problems, "to train on")->capture_default_str()->check(kFromOne);
  app.add_option_function<std::string>(
         "--problem-set",
         [&o](const std::string& name) {
           o.problem_set = value_named(kProblemSets, name).value_or(o.problem_set);
         },
         help_of(kProblemSets))
      ->default_str("usual")
      ->check(CLI::IsMember(names_in(kProblemSets)));
  app.add_option("--models", o.models,
                 "ONNX model, or folder of them: every fourth problem is one of these")
      ->allow_extra_args(false);
  app.add_option("--from", o.from, "policy to go on from");
  app.add_option("--log", o.log, "CSV to write, one line an episode");
  app.add_option("--threads", o.threads, "that evaluate; they change no byte of the policy")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--validation-problems", o.validation_problems,
                 "held aside, to tell which network is the best; 0: the last one is")
      ->capture_default_str()
      ->check(kFromZero);
  app.add_option("--validate-every", o.validate_every, "episodes")
      ->capture_default_str()
      ->check(kFromOne);
  app.add_option("--validation-budget", o.validation_budget, "evaluations a problem held aside")
      ->capture_default_str()
      ->check(kFromOne);
  add_config_option(app);
}

Status check(const TrainPolicyOptions& o) {
  if (o.output == o.from) {
    return {StatusCode::kUsage, fmt::format("the policy would overwrite '{}'", o.from)};
  }
  return check_dqn_options(o.dqn);
}

}  // namespace

std::string training_command(const CLI::App& app) {
  static const std::set<std::string> kWithoutEffect = {"output", "log",  "threads",
                                                       "config", "help", "version"};
  std::string command = kTrainPolicyCommand;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (kWithoutEffect.count(name) != 0) continue;
    if (option->get_items_expected_max() == 0) command += fmt::format(" --{}", name);
    if (option->get_items_expected_max() == 0) continue;
    for (const std::string& value : option->results()) {
      command += fmt::format(" --{} {}", name, value);
    }
  }
  return command;
}

void add_task(CLI::App& app) {
  app.add_option("--task",
                 "search: the policy of the refiner `dqn`; allreduce: the two policies "
                 "that schedule an all-reduce, with options of its own")
      ->default_str("search")
      ->check(CLI::IsMember({"search", "allreduce"}));
}

std::optional<int> parse_train_policy(const std::vector<std::string>& args, Console console,
                                      TrainPolicyOptions& options) {
  CLI::App app(
      "Trains the policy of the refiner `dqn` on many generated problems and the models given.",
      kTrainPolicyCommand);
  add_task(app);
  add_training_options(app, options);
  add_dqn_options(app, options.dqn);
  add_help(app, kExamples);
  if (const auto code = parse_arguments(app, args, console)) return code;
  options.made_by = training_command(app);
  const Status status = check(options);
  if (!status.ok()) return finish(status, kTrainPolicyCommand, console);
  return {};
}

}  // namespace agpcs
