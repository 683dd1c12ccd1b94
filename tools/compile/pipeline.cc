// SPDX-License-Identifier: Apache-2.0
#include "tools/compile/pipeline.h"

#include "frontend/onnx/import_onnx.h"
#include "ir/base/all_values.h"
#include "ir/base/named.h"
#include "ir/base/units.h"
#include "ir/graph/loss_summary.h"
#include "ir/plan/choices.h"
#include "planner/better_batch.h"
#include "planner/learn/dqn_plugin.h"
#include "planner/learn/learning_refiner.h"
#include "planner/problem/micro_batches.h"
#include "tools/common/calibrated_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

Result<CalibratedCluster> read_cluster_file(const CompileOptions& options) {
  const auto of_model = [&] {  // a precision that the command says replaces it later
    if (!options.precision.empty() || options.model_bytes) return Precision::kFp32;
    return precision_of_file(options.model);
  };
  AGPCS_TRY(CalibratedCluster calibrated, read_calibrated_cluster(options.cluster, of_model));
  ClusterFile& file = calibrated.file;
  if (options.batch > 0) file.training.batch = options.batch;
  Training& training = file.training;
  training.precision = value_named(kPrecisions, options.precision).value_or(training.precision);
  if (!options.wire_type.empty()) training.wire_type = one_named(kWireTypes, options.wire_type);
  const Loss& given = options.loss_options;
  if (!options.loss.empty() || !given.outputs.empty() || has_label_options(given)) {
    training.loss = given;
    training.loss.by_shape = options.loss.empty();
    training.loss.kind = value_named(kLosses, options.loss).value_or(given.kind);
  }
  return calibrated;
}

Result<Imported> import_model(const CompileOptions& options) {
  ImportOptions import;
  import.dims = options.dims;
  import.freeze = options.freeze;
  import.train = options.train;
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

/// Returns which numbers of micro-batches divide a batch: "divide into 1 or 4093 equal
/// micro-batches only", "divide into 1, 2, 23, 46, 89, 178, ... equal micro-batches only".
std::string division_text(std::int64_t batch) {
  constexpr std::size_t kNamed = 6;
  const std::vector<std::int64_t> numbers = micro_batch_numbers(batch);
  if (numbers.size() == 1) return "do not divide into equal micro-batches";
  std::string text = "divide into 1";
  for (std::size_t i = 1; i < std::min(kNamed, numbers.size()); ++i) {
    text += fmt::format("{}{}", i + 1 == numbers.size() ? " or " : ", ", numbers[i]);
  }
  return text + (numbers.size() > kNamed ? ", ..." : "") + " equal micro-batches only";
}

/// Returns "nearest batches that divide well: 4092 and 4095 (--batch, or training.batch in ...)".
std::string near_text(const NearBatches& near) {
  std::string text =
      near.below == 0 || near.above == 0
          ? fmt::format("batch that divides well: {}", near.below + near.above)
          : fmt::format("batches that divide well: {} and {}", near.below, near.above);
  return "nearest " + text + " (--batch, or training.batch in the cluster file)";
}

/// Returns a warning of what is lost because micro-batches are equal; empty if nothing is lost.
std::string batch_warning(std::int64_t batch, double step_seconds,
                          const std::optional<BetterBatch>& better) {
  if (!better) return "";
  const double times = step_seconds / better->step_seconds * static_cast<double>(better->batch) /
                       static_cast<double>(batch);
  return fmt::format(
      "warning: {} samples {}: the step takes {}, a sample {:.1f} times as long as in a batch of "
      "{}, "
      "which takes {} or less\n  hint: {}\n",
      batch, division_text(batch), figure(step_seconds, "s"), times, better->batch,
      figure(better->step_seconds, "s"), near_text(better->near));
}

/// Returns `status`, which says that nothing fits, with a hint if another batch would fit.
Status with_better_batch(const Status& status, const Problem& problem, const PlanOptions& options) {
  AGPCS_TRY(const auto better, better_batch(problem, options, std::nullopt));
  if (!better) return status;
  const std::int64_t batch = problem.training.batch;
  return {StatusCode::kInfeasible,
          fmt::format("{}\n  hint: {} samples {}; a batch of {} fits; {}", status.message(), batch,
                      division_text(batch), better->batch, near_text(better->near))};
}

/// Reports from time to time how far a search is.
class SearchProgress {
 public:
  explicit SearchProgress(Progress& progress)
      : progress_(progress), began_(Clock::now()), said_(began_) {}

  void operator()(std::int64_t made, std::int64_t of, double seconds) {
    const auto now = Clock::now();
    if (now - said_ < std::chrono::milliseconds(500)) return;
    said_ = now;
    const double elapsed = std::chrono::duration<double>(now - began_).count();
    const double speed = static_cast<double>(made) / elapsed;
    progress_.step(
        fmt::format("search: {} of {} evaluations, {:.0f}/s, best step {}, about {:.0f} s to go",
                    made, of, speed, figure(seconds, "s"), static_cast<double>(of - made) / speed));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Progress& progress_;
  Clock::time_point began_, said_;
};

/// Returns the options of planning, with what `options` says by words. `refiner` receives the
/// refiner that they name.
Result<PlanOptions> plan_options(const CompileOptions& options, const Problem& problem,
                                 Progress& progress, std::unique_ptr<Refiner>& refiner) {
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
  plan.search_progress = SearchProgress(progress);
  plan.progress = [&progress](std::string_view what, int number, int of) {
    progress.step(fmt::format("plan {}/{}: {}", number, of, what));
  };
  return plan;
}

}  // namespace

Result<Compiled> compile(const CompileOptions& options, ConsoleStages& stages) {
  std::unique_ptr<Refiner> refiner;
  PlanOptions plan;
  std::vector<std::string> outputs;
  PipelineInput input;
  Precision precision = Precision::kFp32;
  input.read_cluster = [&]() -> Result<ClusterAndTraining> {
    AGPCS_TRY(CalibratedCluster read, read_cluster_file(options));
    stages.warn(read.file.warnings);
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
  input.options = [&](const Problem& problem) -> Result<PlanOptions> {
    stages.warn(unused_outputs_warning(outputs, problem.graph, problem.training.loss));
    AGPCS_TRY(plan, plan_options(options, problem, stages.progress(), refiner));
    return plan;
  };
  Compiled compiled;
  const Status status = run_pipeline(input, stages, compiled);
  if (status.code() == StatusCode::kInfeasible && compiled.problem != nullptr) {
    return with_better_batch(status, *compiled.problem, plan);
  }
  AGPCS_RETURN_IF_ERROR(status);
  const Evaluated& best = compiled.planned.best;
  if (!best.plan.made_by.interrupted) {
    const double seconds = best.estimate.step_seconds;
    AGPCS_TRY(const auto better, better_batch(*compiled.problem, plan, seconds));
    stages.warn(batch_warning(best.plan.training.batch, seconds, better));
  }
  return compiled;
}

}  // namespace agpcs
