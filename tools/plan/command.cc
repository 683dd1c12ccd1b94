// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/command.h"

#include "cost_model/step/model.h"
#include "cost_model/step/simulator.h"
#include "ir/base/diagnostics.h"
#include "ir/base/units.h"
#include "ir/plan/body/body.h"
#include "ir/plan/choices.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/plan_against.h"
#include "planner/problem/problem.h"
#include "tools/common/calibrated_cluster.h"
#include "tools/common/chrome_trace.h"
#include "tools/common/measured_step.h"
#include "tools/plan/explain.h"
#include "tools/plan/explain_operator.h"
#include "tools/plan/export.h"
#include "tools/plan/kinds.h"
#include "tools/plan/report/html_report.h"
#include "tools/plan/search_log.h"
#include "tools/plan/splits.h"
#include "tools/plan/team/team.h"
#include "tools/plan/team/team_reasons.h"
#include "tools/plan/upgrade.h"
#include "tools/plan/views.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

namespace agpcs {
namespace {

constexpr char kName[] = "agpcs-plan";
constexpr char kExamples[] =
    "  agpcs-plan check resnet50.plan\n"
    "  agpcs-plan check resnet50.plan --model resnet50.onnx --cluster cluster.yaml\n"
    "  agpcs-plan show resnet50.plan\n"
    "  agpcs-plan diff old.plan new.plan\n"
    "  agpcs-plan json resnet50.plan > resnet50.json\n"
    "  agpcs-plan explain resnet50.plan resnet50.onnx cluster.yaml\n"
    "  agpcs-plan explain resnet50.plan resnet50.onnx cluster.yaml --operator /conv1/Conv\n"
    "  agpcs-plan drift resnet50.plan trace.json\n"
    "  agpcs-plan trace resnet50.plan resnet50.onnx cluster.yaml -o trace.json\n"
    "  agpcs-plan export resnet50.plan --format msccl --flow f0 -o f0.xml\n"
    "  agpcs-plan export resnet50.plan --format mscclpp --bucket b0 -o b0.json\n"
    "  agpcs-plan export bert.plan --format torch-schedule -o bert.csv\n"
    "  agpcs-plan export llama.plan --format torchtitan --model llama.onnx -o llama.toml\n"
    "  agpcs-plan export llama.plan --format megatron-layout --model llama.onnx\n"
    "  agpcs-plan export resnet50.plan --format nccl-tuner --cluster cluster.yaml -o "
    "nccl_tuner.conf\n"
    "  agpcs-plan report resnet50.plan --model resnet50.onnx --cluster cluster.yaml --against "
    "equal.plan\n"
    "  agpcs-plan kinds V100\n"
    "  agpcs-plan splits llama.onnx --dim seq=2048\n"
    "  agpcs-plan splits llama.onnx --dim seq=2048 --members 5:3 --precision bf16\n"
    "  agpcs-plan upgrade old.plan -o new.plan\n"
    "\n"
    "Exit codes: 0 ok, 1 plan or input wrong, or plans that differ (diff), 2 usage, 3 the plan "
    "does\n"
    "not fit the cluster's memory, 70 our bug\n";

const std::vector<std::string> kCommands = {"check", "show",  "explain", "diff",
                                            "json",  "trace", "report",  "export",
                                            "drift", "kinds", "splits",  "upgrade"};

bool is_unknown_command(const std::string& word) {
  return word.substr(0, 1) != "-" &&
         std::find(kCommands.begin(), kCommands.end(), word) == kCommands.end();
}

struct Arguments {
  std::vector<std::string> dims;
  std::string plan, other, model, cluster, search_log, output = "trace.json", page = "report.html",
                                                       op, kind;
  bool decisions_only = false, json = false, markdown = false, ask_planner = false;
  std::size_t top = 10;
  ExportOptions exports;
  TeamOptions team;
};

/// Model and cluster of a plan, after it has been verified against them.
struct Checked {
  TrainingModel model;
  Cluster cluster;
};

Result<Checked> read_and_check(const Arguments& a, const Plan& plan, Console console) {
  AGPCS_TRY(TrainingModel model, read_planned_model(a.model, plan));
  AGPCS_TRY(CalibratedCluster calibrated,
            read_calibrated_cluster(a.cluster, [&] { return plan.training.precision; }));
  ClusterFile& file = calibrated.file;
  for (const std::string& warnings : {model.warnings, file.warnings}) {
    if (!warnings.empty()) console.err << warnings << '\n';
  }
  AGPCS_RETURN_IF_ERROR(verify_plan_against(plan, model.graph, file.cluster));
  return Checked{std::move(model), std::move(file.cluster)};
}

std::string fit_text(const Plan& plan, const Checked& checked, const std::vector<MemoryUse>& use) {
  std::string text;
  double fullest = -1;
  const std::vector<std::string> devices = devices_of_ranks(plan);
  for (const PlanStage& stage : plan.stages) {
    for (const int rank : stage.all_ranks()) {
      const std::string& device = devices[static_cast<std::size_t>(rank)];
      const std::int64_t has =
          checked.cluster.kind_of(checked.cluster.find_device(device)).memory_bytes;
      const std::int64_t needs = use[static_cast<std::size_t>(rank)].total();
      const double part = static_cast<double>(needs) / static_cast<double>(has);
      if (part <= fullest) continue;
      fullest = part;
      text = fmt::format("; memory fits, fullest is {} with {} of {}", device, byte_figure(needs),
                         byte_figure(has));
    }
  }
  return text;
}

Status check(const Arguments& a, Console console) {
  AGPCS_TRY(Plan plan, read_plan(a.plan));
  std::string fit;
  if (!a.model.empty()) {
    AGPCS_TRY(const Checked checked, read_and_check(a, plan, console));
    AGPCS_TRY(const std::vector<MemoryUse> use, peak_memory(plan, checked.model.graph));
    fit = fit_text(plan, checked, use);
  }
  std::size_t instructions = 0;
  for (const Program& program : plan.programs) instructions += program.instructions.size();
  console.out << fmt::format(
      "{}: ok: {} stage{}, {} rank{}, {} instructions; no rank waits forever, every gradient is "
      "reduced once{}\n",
      a.plan, plan.stages.size(), plan.stages.size() == 1 ? "" : "s", plan.rank_count(),
      plan.rank_count() == 1 ? "" : "s", instructions, fit);
  return {};
}

Status show(const Arguments& a, Console console) {
  AGPCS_TRY(const Plan plan, read_plan(a.plan));
  console.out << show_plan(plan);
  return {};
}

Status json(const Arguments& a, Console console) {
  AGPCS_TRY(const Plan plan, read_plan(a.plan));
  if (a.model.empty()) {
    console.out << plan_json(plan);
    return {};
  }
  std::string text;
  if (a.cluster.empty()) {
    AGPCS_TRY(const TrainingModel model, read_planned_model(a.model, plan));
    AGPCS_TRY(text, plan_json(plan, model.graph));
  } else {
    AGPCS_TRY(const Checked checked, read_and_check(a, plan, console));
    AGPCS_TRY(text, plan_json(plan, checked.model.graph, &checked.cluster));
  }
  console.out << text;
  return {};
}

Result<PlanDiff> diff(const Arguments& a, Console console) {
  AGPCS_TRY(const Plan before, read_plan(a.plan));
  AGPCS_TRY(const Plan after, read_plan(a.other));
  PlanDiff result = diff_plans(before, after);
  console.out << result.text;
  return result;
}

Status trace(const Arguments& a, Console console) {
  AGPCS_TRY(Plan plan, read_plan(a.plan));
  AGPCS_TRY(const Checked checked, read_and_check(a, plan, console));
  AGPCS_TRY(const SimulatedStep step,
            simulated_step(std::move(plan), checked.model.graph, checked.cluster));
  const Estimate& estimate = step.estimate;
  AGPCS_RETURN_IF_ERROR(write_file(
      a.output, chrome_trace(step.plan, checked.cluster, estimate, step.report), console));
  console.err << fmt::format("{}: {} events over {}; open it in https://ui.perfetto.dev\n",
                             a.output, estimate.timeline.size(),
                             figure(estimate.step_seconds, "s"));
  return {};
}

/// Reads and simulates the plan in `path`, which must be for the same model and cluster.
Result<SimulatedStep> step_of(const std::string& path, const Checked& checked) {
  AGPCS_TRY(Plan plan, read_plan(path));
  AGPCS_RETURN_IF_ERROR(
      in_plan_file(verify_plan_against(plan, checked.model.graph, checked.cluster), path));
  return simulated_step(std::move(plan), checked.model.graph, checked.cluster);
}

/// Returns why a plan has teams; nothing if it has none.
Result<std::optional<TeamReasons>> reasons_of(const SimulatedStep& step, const Checked& checked) {
  const Plan& plan = step.plan;
  if (plan.bodies.empty()) return std::optional<TeamReasons>();
  AGPCS_TRY(const std::unique_ptr<const Problem> problem,
            Problem::make(checked.model.graph, checked.cluster, plan.training));
  AGPCS_TRY(const StepModel model,
            make_step_model(plan, problem->graph, problem->cluster, problem->costs));
  AGPCS_TRY(TeamReasons reasons, team_reasons(plan, *problem, model, step.estimate, false));
  return std::optional<TeamReasons>(std::move(reasons));
}

Status report(const Arguments& a, Console console) {
  AGPCS_TRY(Plan plan, read_plan(a.plan));
  AGPCS_TRY(const Checked checked, read_and_check(a, plan, console));
  AGPCS_TRY(const SimulatedStep step,
            simulated_step(std::move(plan), checked.model.graph, checked.cluster));
  ReportInput input{checked.cluster, step, nullptr, {}};
  const Result<std::optional<TeamReasons>> teams = reasons_of(step, checked);
  if (!teams.ok()) {
    console.err << fmt::format(
        "{}: warning: the report does not say why the plan has teams\n  {}\n", a.plan,
        teams.status().message());
  } else if (*teams) {
    input.teams = &**teams;
  }
  std::optional<SimulatedStep> before;
  if (!a.other.empty()) {
    AGPCS_TRY(before, step_of(a.other, checked));
    input.before = &*before;
  }
  std::vector<EpisodeLog> search;
  if (!a.search_log.empty()) {
    AGPCS_TRY(const std::string text, read_input(a.search_log, {"search log"}));
    AGPCS_TRY(search, parse_search_log(text, a.search_log));
    input.search = search;
    if (!has_learned(search)) {
      console.err << fmt::format(
          "{}: warning: nothing was learned: the report has no section of the search\n"
          "  hint: agpcs-compile --episodes learns\n",
          a.search_log);
    }
  }
  return write_file(a.page, html_report(input), console);
}

Status upgrade(const Arguments& a, Console console) {
  AGPCS_TRY(const std::string text, read_input(a.plan, {"plan"}));
  AGPCS_TRY(const std::string upgraded, upgrade_plan(text, a.plan));
  return write_file(a.exports.output, upgraded, console);
}

Status export_plan(const Arguments& a, Console console) {
  AGPCS_TRY(const Plan plan, read_plan(a.plan));
  AGPCS_RETURN_IF_ERROR(refuse_teams(plan, "agpcs-plan export"));
  return export_plan(a.exports, plan, console);
}

Status explain(const Arguments& a, Console console) {
  AGPCS_TRY(const Plan plan, read_plan(a.plan));
  AGPCS_TRY(Checked checked, read_and_check(a, plan, console));
  AGPCS_TRY(
      const std::unique_ptr<const Problem> problem,
      Problem::make(std::move(checked.model.graph), std::move(checked.cluster), plan.training));
  if (!a.op.empty()) {
    AGPCS_TRY(const OperatorExplanation found, explain_operator(plan, *problem, a.op));
    console.out << (a.json ? operator_json(found) : operator_text(found, a.top));
    return {};
  }
  const ExplainTeams teams = a.ask_planner ? ExplainTeams::kAskPlanner : ExplainTeams::kIfThere;
  AGPCS_TRY(const Explanation explanation, explain(plan, *problem, teams));
  console.out << (a.json ? explain_json(explanation) : explain_text(explanation, a.top));
  return {};
}

Status drift(const Arguments& a, Console console) {
  AGPCS_TRY(const Plan plan, read_plan(a.plan));
  AGPCS_TRY(const std::string text, read_input(a.other, {"trace"}));
  AGPCS_TRY(const MeasuredStep step, read_measured_trace(text, a.other, plan));
  console.out << (a.json ? drift_json(plan, step) : drift_text(plan, step));
  return {};
}

Status kinds(const Arguments& a, Console console) {
  if (a.markdown) {
    console.out << kinds_page(catalog());
    return {};
  }
  AGPCS_TRY(const ShownKinds shown, select_kinds(catalog(), a.kind));
  console.out << (a.json ? kinds_json(shown) : kinds_text(shown));
  return {};
}

CLI::App* add_kinds(CLI::App& app, Arguments& a) {
  CLI::App* command =
      app.add_subcommand("kinds", "the accelerators and networks that cluster.yaml may name");
  command->add_option("name", a.kind, "only those whose names contain it; one: with sources");
  CLI::Option* json = command->add_flag("--json", a.json, "everything, as JSON");
  command->add_flag("--markdown", a.markdown, "all of them, as docs/reference/kinds.md")
      ->excludes(json);
  return command;
}

Status splits(const Arguments& a, Console console) {
  ModelChoices choices;
  AGPCS_TRY(choices.dims, parse_dims(a.dims));
  Loss loss;
  loss.by_shape = true;
  AGPCS_TRY(const TrainingModel model, read_training_model(a.model, choices, loss));
  if (!model.warnings.empty()) console.err << model.warnings << '\n';
  if (a.team.members.empty()) {
    console.out << splits_text(model.graph);
    return {};
  }
  AGPCS_TRY(const TeamAnswer answer, ask_team(model.graph, a.team));
  console.out << (a.json ? team_json(model.graph, answer) : team_text(model.graph, answer));
  return {};
}

CLI::App* add_splits(CLI::App& app, Arguments& a) {
  CLI::App* command =
      app.add_subcommand("splits", "how a team of devices could divide the operators of a model");
  command->add_option("model", a.model, "an ONNX model")->required();
  command->add_option("--dim", a.dims, "NAME=VALUE binds a symbolic dimension of the model")
      ->allow_extra_args(false);
  CLI::Option* members = command->add_option(
      "--members", a.team.members,
      "PARTS such as 5:3: how a team of so many members, with such parts, would divide the model");
  const auto count = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  command->add_option("--samples", a.team.samples, "of a micro-batch (default: 1)")
      ->check(count)
      ->needs(members);
  command->add_option("--micro-batches", a.team.micro_batches, "of a step (default: 1)")
      ->check(count)
      ->needs(members);
  command->add_option("--precision", a.team.precision, help_of(kPrecisions) + " (default: fp32)")
      ->needs(members);
  command
      ->add_option("--accelerator", a.team.accelerator,
                   "of the catalog: the member with the greatest part (default: A100-SXM4-80GB)")
      ->needs(members);
  command
      ->add_option("--network", a.team.network,
                   "of the catalog: between the members (default: nvswitch-a100)")
      ->needs(members);
  command->add_flag("--json", a.json, "with --members: everything, as JSON")->needs(members);
  return command;
}

CLI::App* add_command(CLI::App& app, Arguments& a, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("plan", a.plan, "plan file; - is standard input")->required();
  return command;
}

void add_problem(CLI::App* command, Arguments& a) {
  command->add_option("model", a.model, "the ONNX model it was made for")->required();
  command->add_option("cluster", a.cluster, "the cluster file")->required();
}

}  // namespace

int plan_command(const std::vector<std::string>& args, Console console) {
  Arguments a;
  CLI::App app("Checks, prints, explains, compares and exports AGPCS plans.", kName);
  add_help(app, kExamples);
  app.require_subcommand(1);
  CLI::App* check_app =
      add_command(app, a, "check",
                  "prove that the plan is sound, and with a model and a cluster that it fits them");
  CLI::Option* model = check_app->add_option("--model", a.model, "the ONNX model it was made for");
  CLI::Option* cluster = check_app->add_option("--cluster", a.cluster, "the cluster file");
  model->needs(cluster);
  cluster->needs(model);
  CLI::App* show_app = add_command(app, a, "show", "a summary for people");
  CLI::App* explain_app = add_command(
      app, a, "explain", "where the simulated step's time goes, and what would make it shorter");
  add_problem(explain_app, a);
  CLI::Option* op = explain_app->add_option(
      "--operator", a.op, "why this operator is in its stage, and what moving it would cost");
  explain_app
      ->add_flag("--teams", a.ask_planner,
                 "why the plan has teams, or none, also by what the planner would make otherwise: "
                 "takes as long as planning")
      ->excludes(op);
  explain_app->add_flag("--json", a.json, "everything, as JSON");
  explain_app->add_option("--top", a.top, "lines a list has at most (default: 10)")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  CLI::App* diff_app = add_command(app, a, "diff", "what differs; exit code 1 when something does");
  diff_app->add_option("other", a.other, "plan file to compare with")->required();
  diff_app->add_flag("--decisions", a.decisions_only,
                     "exit with 0 when only expectations, or how the plan was made, differ");
  CLI::App* json_app = add_command(app, a, "json", "the plan as JSON on standard output");
  CLI::Option* const json_model = json_app->add_option(
      "--model", a.model, "the ONNX model it was made for: adds its operators, with their stages");
  json_app
      ->add_option("--cluster", a.cluster,
                   "with --model, its cluster file: adds the memory of each rank")
      ->needs(json_model);
  CLI::App* trace_app =
      add_command(app, a, "trace", "Chrome trace of the simulated step, for Perfetto");
  add_problem(trace_app, a);
  trace_app->add_option("-o,--output", a.output, "- is standard output (default: trace.json)");
  CLI::App* report_app =
      add_command(app, a, "report",
                  "one HTML page: figures, charts, tables; with another plan before and after");
  report_app->add_option("--model", a.model, "the ONNX model it was made for")->required();
  report_app->add_option("--cluster", a.cluster, "the cluster file")->required();
  report_app->add_option("--against", a.other,
                         "plan file of the same model and cluster to compare with");
  report_app->add_option("--search-log", a.search_log,
                         "what agpcs-compile --search-log wrote: draws the learning curve");
  report_app->add_option("-o,--output", a.page, "- is standard output (default: report.html)");

  CLI::App* drift_app = add_command(
      app, a, "drift", "where a measured step departs from the plan: devices, all-reduces, sends");
  drift_app->add_option("trace", a.other, "what agpcs-run --trace wrote")->required();
  drift_app->add_flag("--json", a.json, "everything, as JSON");

  CLI::App* export_app = add_command(
      app, a, "export", "a flow, the choice of ring or tree, or a pipeline, for other programs");
  export_app
      ->add_option("--format", a.exports.format,
                   "msccl: an algorithm for MSCCL, as XML; mscclpp: an execution plan of MSCCL++, "
                   "as JSON; nccl-tuner: ring or tree by size, "
                   "for NCCL's example tuner plugin; torch-schedule: the order of a pipeline's "
                   "passes, for PyTorch's pipeline runtime; torchtitan: its modules of each stage "
                   "and the schedule; megatron-layout: its layers of each stage")
      ->required()
      ->check(CLI::IsMember(export_formats()));
  CLI::Option* flow = export_app->add_option("--flow", a.exports.flow,
                                             "msccl, mscclpp: which flow (default: the only one)");
  export_app
      ->add_option("--bucket", a.exports.bucket,
                   "mscclpp: the all-reduce of this bucket, flow or not")
      ->excludes(flow);
  export_app->add_option("--cluster", a.exports.cluster, "nccl-tuner: the cluster file");
  export_app->add_option("--model", a.exports.model,
                         "torchtitan, megatron-layout: the ONNX model it was made for");
  export_app
      ->add_option("--channels", a.exports.channels,
                   "nccl-tuner: channels of an all-reduce (default: -1, NCCL's choice)")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  export_app->add_option("-o,--output", a.exports.output, "- is standard output, the default");

  CLI::App* kinds_app = add_kinds(app, a);
  CLI::App* splits_app = add_splits(app, a);
  CLI::App* upgrade_app =
      add_command(app, a, "upgrade", "the plan in the format that this AGPCS reads");
  upgrade_app->add_option("-o,--output", a.exports.output, "- is standard output, the default");

  if (!args.empty() && is_unknown_command(args[0])) {
    return usage_error(kName, fmt::format("unknown command '{}'", args[0]),
                       did_you_mean(args[0], kCommands, "commands"), console);
  }
  if (const std::optional<int> code = parse_arguments(app, args, console)) return *code;
  const auto ended = [&](const Status& status) {
    return finish(in_plan_file(status, a.plan), kName, console);
  };
  if (check_app->parsed()) return ended(check(a, console));
  if (show_app->parsed()) return ended(show(a, console));
  if (explain_app->parsed()) return ended(explain(a, console));
  if (json_app->parsed()) return ended(json(a, console));
  if (trace_app->parsed()) return ended(trace(a, console));
  if (report_app->parsed()) return ended(report(a, console));
  if (drift_app->parsed()) return ended(drift(a, console));
  if (export_app->parsed()) return ended(export_plan(a, console));
  if (upgrade_app->parsed()) return ended(upgrade(a, console));
  if (kinds_app->parsed()) return ended(kinds(a, console));
  if (splits_app->parsed()) return ended(splits(a, console));
  const Result<PlanDiff> result = diff(a, console);
  if (!result.ok()) return finish(result.status(), kName, console);
  return result->same || (a.decisions_only && !result->decisions) ? 0 : 1;
}

}  // namespace agpcs
