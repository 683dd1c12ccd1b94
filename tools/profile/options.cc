// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/options.h"

#include "ir/plan/choices.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace agpcs {
namespace {

constexpr const char* kExamples =
    "  agpcs-profile resnet50.onnx --kind cpu -o cpu.yaml\n"
    "      measure the operators of a model on this machine\n"
    "  agpcs-profile --quick --kind cpu -o cpu.yaml\n"
    "      measure what tells kinds of operators apart, in less than two minutes, for any model\n"
    "  agpcs-profile resnet50.onnx bert.onnx --cluster cluster.yaml --local\n"
    "      one process per device of the cluster on this machine, all at once, and their network\n"
    "  srun -n 8 agpcs-profile resnet50.onnx --cluster cluster.yaml\n"
    "      be one rank of eight, each on its device; torchrun and mpirun work alike\n"
    "  agpcs-profile --from-kineto trace.json resnet50.onnx -o a100.yaml\n"
    "      make a profile from a trace of torch.profiler\n"
    "  agpcs-profile --merge cpu.yaml gpu.yaml -o profile.yaml\n"
    "  agpcs-profile --show profile.yaml cluster.yaml\n"
    "      what is in a profile, and how well the fits explain it\n"
    "\n"
    "Exit codes: 0 profile written, 1 input wrong, 2 usage, 3 not enough memory, 70 our bug,\n"
    "130 interrupted\n";

/// Returns the losses that need no name of an output.
std::vector<std::string> profiled_losses() {
  std::vector<std::string> names;
  for (const LossEntry& loss : kLosses) {
    if (loss.value != LossKind::kOutput) names.emplace_back(loss.name);
  }
  return names;
}

std::vector<std::string> optimizer_options() {
  std::vector<std::string> names;
  for (const OptimizerVariant& variant : kOptimizerVariants) names.emplace_back(variant.option);
  return names;
}

/// Returns "sgd, sgd-momentum or adam".
std::string or_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  }
  return text;
}

// Returns an error unless the text is a name as cluster files have them.
std::string not_a_name(const std::string& text) {
  const bool good = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  });
  return good ? std::string() : fmt::format("'{}' is no name of letters, digits, _ . -", text);
}

/// Texts that are parsed later.
struct Words {
  std::vector<std::string> dims;
  std::string loss, optimizer;
};

void add_device_options(CLI::App& app, ProfileOptions& o) {
  const CLI::Validator positive(not_positive, "POSITIVE");
  app.add_option("--kind", o.kind, "name of this machine's device kind, as cluster files have it")
      ->check(CLI::Validator(not_a_name, "NAME"));
  app.add_option("--cluster", o.cluster, "measure every device of this cluster file");
  app.add_flag("--local", o.local, "start a rank per device of the cluster on this machine");
  app.add_option("--threads", o.threads,
                 "threads of each rank; default: the cores, divided among the ranks here")
      ->check(CLI::Range(1, 1024));
  add_transport_option(app, o.transport, /*threads=*/false);
  add_job_options(app, o);
}

void add_measuring_options(CLI::App& app, ProfileOptions& o, Words& words) {
  const CLI::Validator positive(not_positive, "POSITIVE");
  app.add_option("--samples", o.samples,
                 "numbers of samples, such as 1,2,8 (default: 1,2,4,... up to 256 as time and "
                 "memory allow)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(positive);
  app.add_option("--seconds", o.seconds, "how long to measure operators, about")
      ->capture_default_str()
      ->check(positive);
  app.add_option("--network-seconds", o.network_seconds,
                 "how long to measure messages and all-reduces, about")
      ->capture_default_str()
      ->check(positive);
  app.add_option("--teams", o.teams,
                 "also measure what members of even teams compute: numbers of members, such as 2,4")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(2, 1024));
  add_model_options(app, o, words.dims);
  app.add_option("--loss", words.loss,
                 or_text(profiled_losses()) +
                     " (default: the cluster file's, or by the shapes of the outputs)")
      ->check(CLI::IsMember(profiled_losses()));
  app.add_option("--optimizer", words.optimizer,
                 or_text(optimizer_options()) + " (default: the cluster file's, or sgd-momentum)")
      ->check(CLI::IsMember(optimizer_options()));
}

Optimizer optimizer_of(const std::string& word) {
  Optimizer optimizer;
  for (const OptimizerVariant& variant : kOptimizerVariants) {
    if (variant.option != word) continue;
    optimizer.kind = variant.kind;
    optimizer.momentum = variant.momentum;
  }
  return optimizer;
}

Status usage(std::string message) { return {StatusCode::kUsage, std::move(message)}; }

Status check_kineto(const ProfileOptions& o, const CLI::App& app) {
  if (o.merge || o.show || o.quick)
    return usage("--from-kineto, --merge, --quick and --show are separate commands");
  if (!o.cluster.empty() || o.local) {
    return usage(
        "a trace is of one device: --from-kineto takes no cluster\n"
        "  hint: make a profile of each device's trace, and put them together by --merge");
  }
  if (o.files.size() > 1)
    return usage("--from-kineto takes one model at most: the one that was traced");
  if (o.samples.size() > 1) return usage("--from-kineto takes one number of samples: a step's");
  for (const std::string& file : o.files) {
    if (file == o.output) return usage(fmt::format("the profile would overwrite '{}'", file));
  }
  if (o.kineto == o.output) {
    return usage(fmt::format("the profile would overwrite '{}'", o.kineto));
  }
  std::vector<std::string> of_measuring;
  for (const char* option :
       {"--seconds", "--network-seconds", "--threads", "--transport", "--teams"}) {
    if (app.count(option) > 0) of_measuring.emplace_back(option);
  }
  if (of_measuring.empty()) return {};
  return usage(fmt::format("--from-kineto measures nothing here: it takes no {}",
                           fmt::join(of_measuring, ", ")));
}

Status check_quick(const ProfileOptions& o, const CLI::App& app) {
  if (o.merge || o.show) return usage("--quick, --merge and --show are separate commands");
  if (!o.files.empty()) {
    return usage(
        "--quick takes no model: its profile is for any\n"
        "  hint: leave --quick out to measure each operator of a model");
  }
  for (const char* option : {"--dim", "--freeze", "--train", "--loss", "--teams"}) {
    if (app.count(option) > 0) {
      return usage(fmt::format("--quick takes no {}, which is a model's", option));
    }
  }
  return {};
}

Status check(const ProfileOptions& o, const CLI::App& app) {
  if (o.merge && o.show) return usage("--merge and --show are two commands");
  if (!o.kineto.empty()) return check_kineto(o, app);
  if (o.quick) AGPCS_RETURN_IF_ERROR(check_quick(o, app));
  if (o.files.empty() && !o.quick) return usage("files is required");
  if (o.merge && o.files.size() < 2) return usage("--merge needs two or more profiles");
  if (o.show && o.files.size() > 2) {
    return usage("--show takes one profile, and the cluster file that its links belong to");
  }
  if (o.merge || o.show) return {};
  if (const std::string why = objection_to_transport(o); !why.empty()) return usage(why);
  if (o.kind.empty() == o.cluster.empty()) {
    return usage(
        "either --kind or --cluster is needed\n"
        "  hint: --kind NAME measures this machine alone, --cluster FILE every device of a "
        "cluster and its network");
  }
  if (o.local && o.cluster.empty()) return usage("--local needs --cluster");
  if (!o.teams.empty() && o.cluster.empty()) {
    return usage(
        "--teams needs --cluster: what a team divides depends on the links between its members");
  }
  for (const std::string& file : o.files) {
    if (file == o.output) return usage(fmt::format("the profile would overwrite '{}'", file));
    if (file == "-") return usage("models are read more than once: '-' is none");
  }
  if (o.output == o.cluster) {
    return usage(fmt::format("the profile would overwrite '{}'", o.cluster));
  }
  return {};
}

Status resolve(const Words& words, const CLI::App& app, ProfileOptions& o) {
  AGPCS_TRY(o.dims, parse_dims(words.dims));
  if (!words.loss.empty()) o.loss = Loss{*value_named(kLosses, words.loss), {}};
  if (!words.optimizer.empty()) o.optimizer = optimizer_of(words.optimizer);
  for (std::vector<std::int64_t>* counts : {&o.samples, &o.teams}) {
    std::sort(counts->begin(), counts->end());
    counts->erase(std::unique(counts->begin(), counts->end()), counts->end());
  }
  return check(o, app);
}

}  // namespace

std::optional<int> parse_profile_options(const std::vector<std::string>& args, Console console,
                                         ProfileOptions& options) {
  CLI::App app("Measures operators, links and all-reduces, for plans that know what they cost.",
               kProfileCommand);
  Words words;
  app.add_option("files", options.files, "ONNX models; with --merge and --show profiles");
  app.add_option("-o,--output", options.output, "profile to write; - is standard output")
      ->capture_default_str();
  app.add_flag(
      "--quick", options.quick,
      "measure a few dozen shapes instead of models: in less than two minutes, for any model");
  app.add_flag("--merge", options.merge, "put profiles together");
  app.add_flag("--show", options.show, "say what is in a profile");
  app.add_option(
      "--from-kineto", options.kineto,
      "make a profile from this trace of torch.profiler, and of the model that was traced");
  add_device_options(app, options);
  add_measuring_options(app, options, words);
  add_help(app, kExamples);
  if (const auto code = parse_arguments(app, args, console)) return code;
  options.given = GivenOptions(app);
  const Status status = resolve(words, app, options);
  if (!status.ok()) return finish(status, kProfileCommand, console);
  return {};
}

}  // namespace agpcs
