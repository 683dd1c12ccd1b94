// SPDX-License-Identifier: Apache-2.0
// agpcs-compile: plans a model for a cluster.
#include "ir/base/all_values.h"
#include "ir/base/named.h"
#include "ir/plan/choices.h"
#include "planner/refine/refiner.h"
#include "planner/seed/seeder.h"
#include "tools/common/common.h"
#include "tools/common/dqn_options.h"
#include "tools/common/interrupt.h"
#include "tools/common/new_file.h"
#include "tools/common/option_checks.h"
#include "tools/compile/options.h"
#include "tools/compile/pipeline.h"
#include "tools/compile/report.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <thread>

namespace agpcs {
namespace {

constexpr char kName[] = "agpcs-compile";
constexpr char kExamples[] =
    "  agpcs-compile resnet50.onnx cluster.yaml                      writes resnet50.plan\n"
    "  agpcs-compile bert.onnx cluster.yaml -o bert.plan --batch 256 --precision fp16\n"
    "  agpcs-compile gpt.onnx cluster.yaml --dim seq=1024 --seeder metis --seeder linear\n"
    "  agpcs-compile resnet50.onnx cluster.yaml --json > resnet50.json\n"
    "  agpcs-compile resnet50.onnx cluster.yaml --stop-after blocks --dump-after blocks\n"
    "\n"
    "Exit codes: 0 plan written, 1 input wrong, 2 usage, 3 no plan fits, 130 interrupted: the best "
    "plan so far is written, 70 our bug\n";

struct Arguments {
  CompileOptions compile;
  ConsoleStages::Options stages;
  std::string output, search_log;
  std::vector<std::string> dims, seeders, loss_outputs;
  bool json = false, quiet = false;
};

/// Returns the help of an option whose words stand in a table with a help each.
std::string lines_of(std::string help, const auto& table) {
  for (const auto& entry : table) help += fmt::format("\n{}: {}", entry.name, entry.help);
  return help;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

void add_loss_options(CLI::App& app, Arguments& a) {
  app.add_option("--loss", a.compile.loss,
                 lines_of("default: training.loss, or else by the shapes of the outputs", kLosses));
  app.add_option("--loss-output", a.loss_outputs,
                 "NAME or NAME=WEIGHT: a model output that the loss is attached to")
      ->allow_extra_args(false);
  app.add_option("--ignore-index", a.compile.loss_options.ignore_index,
                 "label that does not count (default: -100 where samples have several labels)");
  app.add_option("--label-smoothing", a.compile.loss_options.label_smoothing,
                 "part of a label that is spread over all classes (default: 0)")
      ->check(CLI::Range(0.0, 1.0, "a number from 0 to less than 1"));
  app.add_option("--class-axis", a.compile.loss_options.class_axis,
                 "axis of the logits that has the classes: 1, or -1 for the last (default: by "
                 "the shape)")
      ->check(CLI::IsMember({1, -1}));
  app.add_option("--next-token", a.compile.loss_options.next_token,
                 "NAME of the input of tokens that a language model predicts, or auto: the label "
                 "of each position is the token that follows");
}

void add_input_options(CLI::App& app, Arguments& a) {
  app.add_option("model", a.compile.model, "ONNX model (.onnx, or .onnxtxt for ONNX's text syntax)")
      ->required();
  app.add_option("cluster", a.compile.cluster, "cluster file (docs/reference/cluster_yaml.md)")
      ->required();
  app.add_option("-o,--output", a.output,
                 "plan file; - is standard output (default: the model's name with .plan, in the "
                 "current folder)");
  app.add_option("--batch", a.compile.batch, "samples a step (default: training.batch)")
      ->check(at_least(1));
  add_model_options(app, a.compile, a.dims);
  app.add_flag("--inference-graph", a.compile.inference_graph,
               "plan a model that was optimized for inference as it is, although batch norm or "
               "parameters are lost in it");
  app.add_option("--precision", a.compile.precision,
                 help_of(kPrecisions) + " (default: training.precision)");
  app.add_option("--attention", a.compile.attention,
                 lines_of("what attention costs (default: training.attention, or else steps):",
                          kAttentionForms));
  app.add_option(
      "--wire-type", a.compile.wire_type,
      joined(names_of(kWireTypes)) +
          ": what fp32 gradients are rounded to while they are summed over devices, half "
          "the bytes (default: they travel as they are)");
  add_loss_options(app, a);
}

void add_search_options(CLI::App& app, Arguments& a) {
  app.add_option("--seed", a.compile.plan.seed, "of everything random (default: 0)")
      ->check(at_least(0));
  app.add_option(
         "--seeder", a.seeders,
         lines_of("where plans come from, may be given several times; all (the default) or:",
                  named_seeders()))
      ->allow_extra_args(false);
  app.add_option("--layout", a.compile.layout,
                 "plan exactly these stages and devices: \"a/0:3,a/1:1|b/0\" (| between stages; "
                 ":3 gives samples by weight instead of speed; a/0,in-flight=4 has 4 micro-batches "
                 "in flight; |schedule=interleaved,each=2 at the end gives each device 2 stages)");
  app.add_option("--refiner", a.compile.refiner,
                 lines_of("how the best of them is improved (default: dqn):", refiners()));
  app.add_option("--budget", a.compile.plan.budget,
                 "evaluations of the refiner (default: 100 to 1500, fewer for larger problems)")
      ->check(at_least(1));
  app.add_option("--policy", a.compile.policy,
                 "policy of dqn, by agpcs-train-policy (default: the one that ships)");
  app.add_option("--episodes", a.compile.episodes,
                 "dqn is first trained for so many episodes on this very problem; anew, unless "
                 "--policy is given (default: 0)")
      ->check(CLI::Range(0.0, 1e9, "a whole number from 0"));
  app.add_option("--all-reduce", a.compile.all_reduce,
                 "how gradients are summed: " + joined(all_reduce_words()) +
                     " (default: auto, the fastest for each bucket by simulation; flow: along "
                     "schedules made for the network, whatever they take)");
  app.add_option("--threads", a.compile.plan.threads,
                 "that evaluate; they change no byte of the plan (default: all cores)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--micro-batches", a.compile.problem.micro_batches,
                 "number of micro-batches (default: the planner chooses)")
      ->check(at_least(1));
  app.add_option(
         "--without", a.compile.without,
         "what plans may not do: " + joined(dimension_words()) +
             " (state: devices divide the optimizer's state; schedules: stages have other "
             "numbers of micro-batches in flight than 1F1B's textbook, or part backward passes; "
             "zero-bubble: they part backward passes; interleaved: devices have several stages "
             "each; "
             "segments: stages recompute other than as a whole; offload: stages have the "
             "optimizer's state or activations in the memory of hosts; activations: they have "
             "activations there)")
      ->delimiter(',');
  app.add_option("--space", a.compile.space,
                 "the plans that are looked at: " + joined(space_words()) +
                     " (default: whole; today leaves out all that --without names: shares, "
                     "pipelines with plain 1F1B or GPipe, stages that recompute as a whole)");
  app.add_option("--cut-at", a.compile.cut_at,
                 "where stages may be cut: " + joined(cut_words()) +
                     " (default: operators; modules leaves each layer, and each module outside of "
                     "a list of layers, whole)");
  app.add_flag_callback(
      "--idle-ranks", [&a] { a.compile.problem.ranks = Ranks::kAll; },
      "give each device that the plan does not use an idle rank, so that a job that plans anew "
      "(agpcs-run --replan) may use it later");
  app.add_option("--bucket-bytes", a.compile.problem.bucket_bytes,
                 "most bytes of gradients reduced together (default: the planner chooses)")
      ->check(at_least(1));
}

void add_report_options(CLI::App& app, Arguments& a) {
  app.add_flag_callback(
      "--no-bound", [&a] { a.compile.plan.bound = false; },
      "leave out the proof of how far the plan is from the best possible");
  app.add_flag("--json", a.json, "print the summary as JSON (docs/reference/agpcs_compile.md)");
  app.add_flag("-q,--quiet", a.quiet, "no progress and no summary");
  app.add_option("--dump-after", a.stages.dump_after,
                 "print the result of a stage: " + joined(Stages::names()))
      ->allow_extra_args(false);
  app.add_option("--search-log", a.search_log,
                 "CSV of the search, one line an episode (agpcs-plan report draws it)");
  app.add_option("--stop-after", a.stages.stop_after, "end after a stage, write no plan");
  app.add_flag("--times", a.stages.times, "print how long each stage took");
}

Status usage(std::string message) { return {StatusCode::kUsage, std::move(message)}; }

Status check_choices(const Arguments& a) {
  AGPCS_RETURN_IF_ERROR(check_dqn_options(a.compile.dqn));
  std::vector<std::string> stages = a.stages.dump_after;
  if (!a.stages.stop_after.empty()) stages.push_back(a.stages.stop_after);
  for (const std::string& stage : stages) {
    AGPCS_RETURN_IF_ERROR(check_word(stage, "stage", "stages", Stages::names()));
  }
  return {};
}

/// Checks that a layout comes without a refiner, which would have nothing to do.
/// `check_compile_options` checks other options.
Status check_layout(const CLI::App& app, const CompileOptions& options) {
  if (app.count("--layout") == 0) return {};
  if (app.count("--refiner") > 0 && options.refiner != "none") return layout_and("--refiner");
  return {};
}

/// Refuses options that would change nothing, because they are likely mistakes.
Status check_effects(const CLI::App& app, const CompileOptions& options) {
  AGPCS_RETURN_IF_ERROR(check_layout(app, options));
  if (options.episodes > 0) return {};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != kDqnGroup || option->count() == 0) continue;
    return usage(
        fmt::format("{} is of learning, and nothing is learned\n  hint: give --episodes, too",
                    option->get_name()));
  }
  return {};
}

/// Splits "aux=0.4" into {"aux", 0.4}. The name may contain '=' if no number follows the last one.
std::pair<std::string, double> loss_output(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  double weight = 0;
  if (equals != std::string::npos && equals > 0) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + equals + 1, end, weight);
    if (error == std::errc() && rest == end && weight > 0) return {text.substr(0, equals), weight};
  }
  return {text, 1.0};
}

/// Turns words into options. Errors: kUsage.
Status resolve(const CLI::App& app, Arguments& a) {
  AGPCS_TRY(a.compile.dims, parse_dims(a.dims));
  if (std::find(a.seeders.begin(), a.seeders.end(), "all") == a.seeders.end()) {
    a.compile.plan.seeders = a.seeders;
  }
  if (!a.compile.layout.empty() && !a.seeders.empty()) a.compile.plan.seeders = a.seeders;
  for (const std::string& text : a.loss_outputs) {
    a.compile.loss_options.outputs.push_back(loss_output(text));
  }
  AGPCS_RETURN_IF_ERROR(check_compile_options(a.compile));
  AGPCS_RETURN_IF_ERROR(check_choices(a));
  AGPCS_RETURN_IF_ERROR(check_effects(app, a.compile));
  if (a.output.empty()) {
    a.output = std::filesystem::path(a.compile.model).stem().string() + ".plan";
  }
  for (const std::string* input : {&a.compile.model, &a.compile.cluster}) {
    std::error_code ignored;
    if (a.output == *input || std::filesystem::equivalent(a.output, *input, ignored)) {
      return usage(
          fmt::format("the plan would overwrite '{}'\n  hint: give another --output", *input));
    }
  }
  return {};
}

/// Checks that the results can be written, before they are searched for.
Status check_outputs(const Arguments& a) {
  AGPCS_RETURN_IF_ERROR(check_can_be_written(a.output));
  if (a.search_log.empty()) return {};
  return check_can_be_written(a.search_log);
}

Status write_results(const Arguments& a, const Compiled& compiled, Console console) {
  AGPCS_RETURN_IF_ERROR(write_file(a.output, print_plan(compiled.planned.best.plan), console));
  if (!a.search_log.empty()) {
    const std::string log = print_search_log(compiled.planned.refinement.log);
    AGPCS_RETURN_IF_ERROR(write_file(a.search_log, log, console));
  }
  std::ostream& report = a.output == "-" ? console.err : console.out;
  if (a.json) {
    report << compile_json(compiled, a.output);
  } else if (!a.quiet) {
    report << compile_summary(compiled);
    if (a.output != "-") report << fmt::format("\nwrote {}\n", a.output);
  }
  return {};
}

int compile_command(std::vector<std::string> args, Console console) {
  CLI::App app(
      "Plans the training of a model on a cluster: writes the plan that agpcs-run replays.", kName);
  Arguments arguments;
  add_input_options(app, arguments);
  add_search_options(app, arguments);
  add_report_options(app, arguments);
  add_dqn_options(app, arguments.compile.dqn);
  add_config_option(app);
  arguments.compile.plan.threads =
      static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  add_help(app, kExamples);
  if (const auto code = parse_arguments(app, std::move(args), console)) return *code;
  if (const Status status = resolve(app, arguments); !status.ok()) {
    return finish(status, kName, console);
  }
  if (arguments.stages.stop_after.empty()) {
    if (const Status status = check_outputs(arguments); !status.ok()) {
      return finish(status, kName, console);
    }
  }
  const InterruptFlag interrupt;
  arguments.compile.plan.interrupted = &interrupt.flag();
  std::ostream nowhere(nullptr);
  Progress progress(arguments.quiet ? nowhere : console.err, is_terminal(2));
  ConsoleStages stages(arguments.stages, console, progress);
  const Result<Compiled> compiled = compile(arguments.compile, stages);
  progress.done();
  if (stages.stopped()) return 0;
  if (!compiled.ok()) return finish(compiled.status(), kName, console);
  if (const Status status = write_results(arguments, *compiled, console); !status.ok()) {
    return finish(status, kName, console);
  }
  const MadeBy& made_by = compiled->planned.best.plan.made_by;
  if (!made_by.interrupted) return 0;
  const std::int64_t budget = compiled->planned.refinement.budget;
  const std::string when =
      budget > 0 ? fmt::format("after {} of {} evaluations", made_by.evaluations, budget)
                 : "while seeding";
  return finish(
      {StatusCode::kCancelled, fmt::format("interrupted {}: the plan is the best so far", when)},
      kName, console);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-compile", argc, argv, agpcs::compile_command);
}
