// SPDX-License-Identifier: Apache-2.0
#include "tools/run/options.h"

#include "tools/common/option_checks.h"
#include "tools/run/safetensors.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

namespace agpcs {
namespace {

constexpr const char* kExamples =
    "  agpcs-run model.plan model.onnx --local --steps 100\n"
    "      start all ranks of the plan on this machine, with synthetic data\n"
    "  agpcs-run model.plan model.onnx --local --data images.npy --labels labels.npy\n"
    "  agpcs-run model.plan model.onnx --local --steps 10000 --save out --save-every 500 \\\n"
    "      --resume out\n"
    "      write checkpoints, and go on from the newest one when started again\n"
    "  AGPCS_JOB_TOKEN=$(openssl rand -hex 16) torchrun --no_python --nproc_per_node 4 \\\n"
    "      agpcs-run model.plan model.onnx\n"
    "      be one rank of four; mpirun and srun work alike\n";

void add_data_options(CLI::App& app, RunOptions& options) {
  app.add_option(
      "--data", options.data,
      ".npy FILE for the model's first input, or INPUT=FILE, or .npz FILE for the inputs of "
      "its arrays' names; a folder or a quoted pattern names several; may be repeated");
  app.add_option("--labels", options.labels,
                 ".npy FILE, folder or quoted pattern with the labels or targets");
  app.add_option("--scale", options.scale,
                 "FACTOR or INPUT=FACTOR: multiply the whole numbers of an input's files to make "
                 "them floating, bytes by 1/255, say; may be repeated");
  app.add_flag("--shuffle", options.shuffle,
               "take the samples of --data in a new order in each epoch, by --seed");
  app.add_flag("--fixed-batch", options.fixed_batch, "train on the first batch again and again");
  CLI::Option* validate = app.add_option(
      "--validate", options.validate,
      "samples as for --data, labels included, of which to report loss and accuracy at the end");
  app.add_option("--validate-every", options.validate_every, "also every so many steps")
      ->check(CLI::Validator(not_positive, "POSITIVE"))
      ->needs(validate);
}

void add_trace_options(CLI::App& app, RunOptions& options) {
  CLI::Option* trace =
      app.add_option("--trace", options.trace,
                     "write one of the last steps as all ranks measured it, a Chrome trace for "
                     "Perfetto and for agpcs-plan drift");
  app.add_option("--trace-cluster", options.trace_cluster,
                 "cluster file of the plan: the trace also has the step as it was planned")
      ->needs(trace);
}

void add_schedule_options(CLI::App& app, RateSchedule& schedule) {
  const auto take = [&schedule](const std::string& name) {
    schedule.shape = value_named(kRateShapes, name).value_or(schedule.shape);
  };
  app.add_option_function<std::string>("--schedule", take,
                                       "course of the learning rate: " + help_of(kRateShapes))
      ->default_str(std::string(entry_of(kRateShapes, schedule.shape).name))
      ->check(CLI::IsMember(names_in(kRateShapes)));
  app.add_option("--warmup", schedule.warmup, "steps at the start in which the rate rises")
      ->check(at_least(0));
  app.add_option("--last-rate", schedule.last,
                 "linear, cosine: the last learning rate, as a part of the plan's (default: 0)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--rate-every", schedule.every, "step: steps with one learning rate")
      ->check(CLI::Validator(not_positive, "POSITIVE"));
  app.add_option("--rate-decay", schedule.decay,
                 "step: what each next rate is of the one before (default: 0.1)")
      ->check(CLI::Range(0.0, 1.0));
}

/// Returns what is wrong with options beside others, or an empty text.
std::string objection_to(const CLI::App& app, const RunOptions& options) {
  const RateSchedule& schedule = options.schedule;
  const bool falls = schedule.shape == RateShape::kLinear || schedule.shape == RateShape::kCosine;
  const bool steps = schedule.shape == RateShape::kStep;
  if (!falls && app.count("--last-rate") > 0) {
    return "--last-rate needs --schedule linear or cosine";
  }
  for (const char* option : {"--rate-every", "--rate-decay"}) {
    if (!steps && app.count(option) > 0) return fmt::format("{} needs --schedule step", option);
  }
  if (steps && app.count("--rate-every") == 0) return "--schedule step needs --rate-every";
  if (!options.scale.empty() && options.data.empty() && options.labels.empty() &&
      options.validate.empty()) {
    return "--scale needs --data: synthetic samples need no conversion";
  }
  if (options.shuffle && options.data.empty() && options.labels.empty()) {
    return "--shuffle needs --data: synthetic samples have no epochs";
  }
  if (schedule.warmup >= options.steps && schedule.warmup > 0) {
    return fmt::format("--warmup takes {} steps, --steps is {}", schedule.warmup, options.steps);
  }
  return objection_to_transport(options);
}

void add_replan_options(CLI::App& app, RunOptions& options) {
  app.add_option("--replan", options.replan,
                 "cluster file of the plan: plan anew when the hardware departs from it, and move "
                 "to the better plan");
  app.add_option("--replan-horizon", options.replan_horizon,
                 "seconds within which a move to another plan must pay for itself")
      ->capture_default_str()
      ->check(CLI::Validator(not_positive, "POSITIVE"));
  app.add_option("--max-switches", options.max_switches,
                 "moves to another plan within any 10 minutes, at most")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
}

}  // namespace

std::optional<int> parse_run_options(const std::vector<std::string>& args, Console console,
                                     RunOptions& options) {
  CLI::App app("Trains a model by a plan: replays it on this machine or as one rank of many.",
               "agpcs-run");
  add_help(app, kExamples);
  app.add_option("plan", options.plan, "the plan, as agpcs-compile wrote it")->required();
  app.add_option("model", options.model, "the ONNX model that the plan was made for")->required();
  const CLI::Validator positive(not_positive, "POSITIVE");
  app.add_flag("--local", options.local, "start every rank of the plan on this machine");
  app.add_option("--steps", options.steps,
                 "how many steps to train, those before --resume included")
      ->capture_default_str()
      ->check(positive);
  const CLI::Option* seed =
      app.add_option(
             "--seed", options.seed,
             "of missing weights, synthetic data, dropout and --shuffle; with --resume its own")
          ->capture_default_str()
          ->check(at_least(0));
  app.add_option("--threads", options.threads,
                 "threads of each rank; default: the cores, divided among the ranks here")
      ->check(CLI::Range(1, 1024));
  add_transport_option(app, options.transport, /*threads=*/true);
  add_data_options(app, options);
  app.add_option("--accumulate", options.accumulate,
                 "batches of the plan in a step: their gradients are summed before one update")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--allow-nan", options.allow_nan,
               "train on when the loss or a gradient is infinite or no number");
  add_schedule_options(app, options.schedule);
  app.add_option("--check-replicas", options.check_replicas,
                 "every so many steps compare the parameters of replicas; default: at the start")
      ->check(positive);
  add_job_options(app, options);
  app.add_flag("--check-messages", options.check_messages,
               "tcp, gloo: a checksum on every message, beyond TCP's own");
  app.add_option("--cuda-graph", options.cuda_graph,
                 "nccl: auto replays steps as CUDA graphs where all ranks can; off never does")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "off"}));
  app.add_flag("--json", options.json, "print one JSON object a line");
  app.add_option("--save-parameters", options.save_parameters,
                 "write the trained parameters to this folder, a .npy file each, or to one file "
                 "whose name ends in .safetensors");
  add_trace_options(app, options);
  add_replan_options(app, options);
  CLI::Option* elastic =
      app.add_flag("--elastic", options.elastic,
                   "with --replan and --save: when ranks are killed or stopped, go on without them "
                   "from the last checkpoint");
  elastic->needs("--replan");
  CLI::Option* save = app.add_option(
      "--save", options.save,
      "write checkpoints, which are ONNX models, to this folder, at the end at least");
  elastic->needs(save);
  app.add_option("--save-every", options.save_every, "also every so many steps")
      ->check(positive)
      ->needs(save);
  app.add_option("--keep-checkpoints", options.keep_checkpoints, "how many of the newest to keep")
      ->capture_default_str()
      ->check(positive);
  app.add_flag("--keep-best", options.keep_best,
               "with --validate: also save and keep the checkpoint with the least validation loss")
      ->needs(save)
      ->needs("--validate");
  app.add_option("--resume", options.resume,
                 "go on from this checkpoint, or from the newest one in this folder");
  auto code = parse_arguments(app, args, console);
  const std::string objection = code ? "" : objection_to(app, options);
  if (!objection.empty()) {
    code = usage_error(app.get_name(), objection, "see agpcs-run --help", console);
  }
  options.schedule.steps = options.steps;
  options.given = GivenOptions(app);
  options.seed_given = seed->count() > 0;
  options.agreed = {
      {"--transport", std::string(name_of(options.transport))},
      {"--steps", std::to_string(options.steps)},
      {"--seed", std::to_string(options.seed)},
      {"--schedule",
       fmt::format("{} {} {} {} {}", entry_of(kRateShapes, options.schedule.shape).name,
                   options.schedule.warmup, options.schedule.last, options.schedule.every,
                   options.schedule.decay)},
      {"--validate", options.validate.empty() ? "no" : "yes"},
      {"--validate-every", std::to_string(options.validate_every)},
      {"--keep-best", options.keep_best ? "yes" : "no"},
      {"--accumulate", std::to_string(options.accumulate)},
      {"--scale", fmt::format("{}", fmt::join(options.scale, " "))},
      {"--shuffle", options.shuffle ? "yes" : "no"},
      {"--fixed-batch", options.fixed_batch ? "yes" : "no"},
      {"--check-replicas", std::to_string(options.check_replicas)},
      {"--cuda-graph", options.cuda_graph},
      {"--check-messages", options.check_messages ? "yes" : "no"},
      {"--save-parameters", is_safetensors(options.save_parameters) ? "one file" : "no file"},
      {"--trace", options.trace.empty() ? "no" : "yes"}};
  return code;
}

}  // namespace agpcs
