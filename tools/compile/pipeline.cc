// SPDX-License-Identifier: Apache-2.0
#include "tools/compile/pipeline.h"

#include "cost_model/explain/drifted_cluster.h"
#include "cost_model/network/link_model.h"
#include "frontend/onnx/import_onnx.h"
#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"
#include "ir/base/units.h"
#include "ir/graph/fused_attention.h"
#include "ir/graph/loss_summary.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/choices.h"
#include "ir/strategy/teams.h"
#include "ir/team/body.h"
#include "planner/learn/dqn_plugin.h"
#include "planner/learn/learning_refiner.h"
#include "tools/common/calibrated_cluster.h"
#include "tools/compile/plan_progress.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns the device of a name, of which the options say `what`.
Result<DeviceId> device_named(const Cluster& cluster, const std::string& name,
                              std::string_view what) {
  const DeviceId device = cluster.find_device(name);
  if (device != kNone) return device;
  std::vector<std::string> names;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) names.push_back(cluster.device_name(id));
  return Status(StatusCode::kUsage, fmt::format("unknown device '{}' {}\n  hint: {}", name, what,
                                                did_you_mean(name, names, "devices")));
}

/// Makes devices as slow as the options say.
Status slow_down(const CompileOptions& options, Cluster& cluster) {
  HardwareDrift drift;
  for (const auto& [name, factor] : options.slower) {
    AGPCS_TRY(const DeviceId device, device_named(cluster, name, "computes slower"));
    if (!(factor > 0)) {
      return Status(StatusCode::kUsage,
                    fmt::format("device '{}' computes slower by a factor of {}\n"
                                "  hint: it is above 0; 2 stands for half the speed",
                                name, factor));
    }
    drift.devices[device] = factor;
  }
  cluster = drifted_cluster(std::move(cluster), drift);
  return {};
}

/// Takes those devices away that the options do not name.
Status keep_named(const CompileOptions& options, Cluster& cluster) {
  if (options.devices.empty()) return {};
  std::set<DeviceId> gone;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) gone.insert(id);
  for (const std::string& name : options.devices) {
    AGPCS_TRY(const DeviceId device, device_named(cluster, name, "is to be planned for"));
    gone.erase(device);
  }
  cluster = without_devices(cluster, {gone.begin(), gone.end()});
  return {};
}

/// Replaces what the cluster file says of the training by what the options say.
void choose(const CompileOptions& options, Training& training) {
  if (options.batch > 0) training.batch = options.batch;
  training.precision = value_named(kPrecisions, options.precision).value_or(training.precision);
  training.attention = value_named(kAttentionForms, options.attention).value_or(training.attention);
  if (!options.wire_type.empty()) training.wire_type = one_named(kWireTypes, options.wire_type);
  const Loss& given = options.loss_options;
  if (!options.loss.empty() || !given.outputs.empty() || has_label_options(given)) {
    training.loss = given;
    training.loss.by_shape = options.loss.empty();
    training.loss.kind = value_named(kLosses, options.loss).value_or(given.kind);
  }
}

/// Returns the precision of a model whose training has none; one that the options say replaces it
/// later.
UnsaidPrecision precision_of_model(const CompileOptions& options) {
  return [&options] {
    if (!options.precision.empty() || options.model_bytes) return Precision::kFp32;
    return precision_of_file(options.model);
  };
}

Result<CalibratedCluster> read_cluster_file(const CompileOptions& options) {
  AGPCS_TRY(CalibratedCluster calibrated,
            read_calibrated_cluster(options.cluster, precision_of_model(options)));
  AGPCS_RETURN_IF_ERROR(slow_down(options, calibrated.file.cluster));
  choose(options, calibrated.file.training);
  return calibrated;
}

Result<Imported> import_model(const CompileOptions& options) {
  ImportOptions import;
  import.dims = options.dims;
  import.freeze = options.freeze;
  import.train = options.train;
  import.fuse = options.fuse;
  import.inference_graph = options.inference_graph;
  if (options.model_bytes) {
    return import_onnx_bytes(*options.model_bytes, options.model, "", import);
  }
  return import_onnx(options.model, import);
}

/// Checks that a model in half precision is trained in that precision.
Status check_precision(const CompileOptions& options, Precision training, const Graph& graph) {
  const Precision of_model = precision_of(graph);
  if (of_model == Precision::kFp32 || of_model == training) return {};
  return invalid_input(fmt::format(
      "{}: error: the weights of the model are {}, and the training is in {}\n"
      "  hint: train it in {} (--precision {}, or leave out training.precision), or "
      "export the model in fp32: model.float()",
      options.model, name_of(of_model), name_of(training), name_of(of_model), name_of(of_model)));
}

Result<std::unique_ptr<Refiner>> chosen_refiner(const CompileOptions& options) {
  if (options.refiner != "dqn") return make_refiner(options.refiner);
  QNetwork policy = shipped_policy();
  if (!options.policy.empty()) {
    AGPCS_TRY(const std::string text, read_input(options.policy, {"policy"}));
    AGPCS_TRY(policy, parse_policy(text, options.policy));
  }
  if (options.episodes == 0) return make_dqn_refiner(policy);
  const QNetwork* const start = options.policy.empty() ? nullptr : &policy;
  AGPCS_TRY(std::unique_ptr<DqnTrainer> trainer,
            load_dqn_trainer(options.dqn, start, options.plan.seed));
  return make_learning_refiner(std::move(trainer), options.episodes, options.dqn.lambda);
}

/// Returns the options of planning, with what `options` says by words. `refiner` receives the
/// refiner that they name.
Result<PlanOptions> plan_options(const CompileOptions& options, const Problem& problem,
                                 PlanProgress& progress, std::unique_ptr<Refiner>& refiner) {
  PlanOptions plan = options.plan;
  if (!options.layout.empty()) {
    AGPCS_TRY(plan.layout, parse_layout(options.layout, problem.cluster));
  }
  AGPCS_TRY(refiner, chosen_refiner(options));
  plan.refiner = refiner->name() == "none" ? nullptr : refiner.get();
  if (plan.budget == 0 && options.episodes > 0) {
    plan.budget = options.episodes * options.dqn.episode_steps + 2000;
  }
  plan.all_reduce = all_reduce_choice_named(options.all_reduce).value();
  plan.progress = [&progress](std::string_view what, int number, int of) {
    progress.begins(what, number, of);
  };
  plan.found = [&progress](double seconds, std::string_view by) { progress.found(seconds, by); };
  plan.bounded = [&progress](const LowerBound& bound) { progress.bounded(bound); };
  plan.search_progress = [&progress, by = refiner->name()](std::int64_t made, std::int64_t of,
                                                           double seconds) {
    progress.searched(made, of, seconds, by);
  };
  return plan;
}

/// Returns bytes per second of a large all-reduce among the members of a stage's first team.
double rate_of_team(const Cluster& cluster, const StageSpec& spec) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 26;
  std::vector<DeviceId> members = members_of(spec, 0);
  std::sort(members.begin(), members.end());
  return static_cast<double>(kBytes) /
         lone_seconds(cluster, all_reduce(cluster, members, AllReduce::kRing, kBytes));
}

/// Returns the warning of a stage whose teams, which have this body, divide nothing.
std::string idle_teams_warning(const std::string& stage, const Cluster& cluster,
                               const StageSpec& spec, const TeamBody& body) {
  return fmt::format(
      "warning: layout: the teams of stage {} divide none of {}: any division exchanges more "
      "than it saves on their links, {}/s in an all-reduce. So each member computes everything, "
      "and {} of {} devices add nothing\n"
      "  hint: replicas (',' in place of '+') share the samples; teams need faster links between "
      "their members, or operators that compute more for each byte that these exchange\n",
      stage, plural(static_cast<std::int64_t>(body.ops.size()), "operator"),
      byte_figure(std::llround(rate_of_team(cluster, spec))),
      spec.devices.size() * (body.members() - 1), spec.devices.size() * body.members());
}

/// Returns a warning for each stage of a layout of whose teams some divide nothing.
std::string idle_teams_warning(const Compiled& compiled) {
  const Evaluated& best = compiled.planned.best;
  std::string text;
  for (std::size_t s = 0; s < best.strategy.stages.size(); ++s) {
    if (!best.strategy.stages[s].has_teams()) continue;
    for (const StageSpec& alike : by_body(best.strategy.stages[s])) {
      const TeamBody& body = best.strategy.bodies[at(alike.body)];
      if (body.members() == 1 || divides_any(body)) continue;
      text += idle_teams_warning(best.plan.stages[s].name, compiled.problem->cluster, alike, body);
    }
  }
  return text;
}

/// Returns a warning if accelerators have unlike teams, by which not everything trains yet.
std::string unlike_teams_warning(const Compiled& compiled) {
  const Evaluated& best = compiled.planned.best;
  const Cluster& cluster = compiled.problem->cluster;
  for (std::size_t s = 0; s < best.strategy.stages.size(); ++s) {
    const StageSpec& spec = best.strategy.stages[s];
    const auto is_accelerator = [&](DeviceId id) {
      return cluster.kind_of(id).processors.count > 0;
    };
    if (!spec.has_unlike_teams() || std::ranges::none_of(all_devices(spec), is_accelerator))
      continue;
    return fmt::format(
        "warning: the replicas of stage {} are teams of unlike numbers of devices: agpcs.torch.Job "
        "trains by this plan, and agpcs-run on CPUs alone\n"
        "  hint: --without unlike-teams for agpcs-run on accelerators\n",
        best.plan.stages[s].name);
  }
  return "";
}

}  // namespace

Result<Compiled> compile(const CompileOptions& options, ConsoleStages& stages) {
  const auto with = [&](std::string_view dimension) {
    return options.space == "whole" && std::find(options.without.begin(), options.without.end(),
                                                 dimension) == options.without.end();
  };
  const bool interleaved = with("schedules") && with("interleaved");
  PlanProgress progress(stages.progress(), with("teams"), interleaved);
  std::unique_ptr<Refiner> refiner;
  std::vector<std::string> outputs;
  PipelineInput input;
  Precision precision = Precision::kFp32;
  std::string digest;  // of the cluster with all of its devices
  input.read_cluster = [&]() -> Result<ClusterAndTraining> {
    AGPCS_TRY(CalibratedCluster read, read_cluster_file(options));
    stages.warn(read.file.warnings);
    digest = digest_of(print_cluster(read.file.cluster));
    AGPCS_RETURN_IF_ERROR(keep_named(options, read.file.cluster));
    precision = read.file.training.precision;
    return ClusterAndTraining{std::move(read.file.cluster), std::move(read.file.training),
                              std::move(read.fits)};
  };
  input.read_model = [&]() -> Result<Graph> {
    AGPCS_TRY(Imported imported, import_model(options));
    stages.warn(imported.warnings);
    AGPCS_RETURN_IF_ERROR(check_precision(options, precision, imported.graph));
    for (const TensorId id : imported.graph.outputs) {
      const Tensor& output = imported.graph.tensor(id);
      if (is_floating(output.type)) outputs.push_back(output.name);
    }
    return std::move(imported.graph);
  };
  input.model = options.model;
  input.problem_options = options.problem;
  input.problem_options.cut_modules = options.cut_at == "operators";
  input.problem_options.most_divided = !with("state")        ? StateLevel::kWhole
                                       : !with("gradients")  ? StateLevel::kOptimizer
                                       : !with("parameters") ? StateLevel::kGradients
                                                             : StateLevel::kParameters;
  input.problem_options.choose_in_flight = with("schedules");
  input.problem_options.part_backward = with("schedules") && with("zero-bubble");
  input.problem_options.choose_segments = with("segments");
  input.problem_options.offload = with("offload");
  input.problem_options.offload_activations = with("offload") && with("activations");
  input.problem_options.choose_teams = with("teams");
  input.problem_options.choose_unlike = with("unlike-teams");
  input.options = [&](const Problem& problem) -> Result<PlanOptions> {
    stages.warn(unused_outputs_warning(outputs, problem.graph, problem.training.loss));
    AGPCS_TRY(PlanOptions plan, plan_options(options, problem, progress, refiner));
    plan.interleave = interleaved;
    return plan;
  };
  Compiled compiled;
  AGPCS_RETURN_IF_ERROR(run_pipeline(input, stages, compiled));
  if (!options.devices.empty()) compiled.planned.best.plan.cluster_digest = digest;
  progress.made(compiled.planned);
  if (!options.layout.empty()) stages.warn(idle_teams_warning(compiled));
  stages.warn(unlike_teams_warning(compiled));
  return compiled;
}

Result<TrainedModel> read_trained_model(const CompileOptions& options) {
  AGPCS_TRY(ClusterFile file, read_cluster(options.cluster, precision_of_model(options)));
  choose(options, file.training);
  AGPCS_TRY(Imported imported, import_model(options));
  AGPCS_RETURN_IF_ERROR(check_precision(options, file.training.precision, imported.graph));
  AGPCS_TRY(Graph graph, attach_loss(std::move(imported.graph), file.training.loss));
  AGPCS_TRY(graph, derive_backward(std::move(graph)));
  if (file.training.attention == AttentionForm::kFused) fuse_attention(graph);
  return TrainedModel{std::move(graph), std::move(file.cluster), std::move(file.training)};
}

}  // namespace agpcs
