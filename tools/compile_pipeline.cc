// SPDX-License-Identifier: Apache-2.0
#include "tools/compile_pipeline.h"

#include "frontend/import_onnx.h"
#include "ir/strategy.h"
#include "ir/training_graph.h"
#include "ir/units.h"
#include "planner/better_batch.h"
#include "planner/dqn_plugin.h"
#include "planner/shares.h"
#include "tools/calibrated_cluster.h"

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
  AGPCS_TRY(CalibratedCluster calibrated, read_calibrated_cluster(options.cluster));
  ClusterFile& file = calibrated.file;
  if (options.batch > 0) file.training.batch = options.batch;
  if (!options.precision.empty()) file.training.precision = options.precision;
  if (!options.wire_type.empty()) file.training.wire_type = dtype_named(options.wire_type);
  if (options.loss) file.training.loss = *options.loss;
  return calibrated;
}

/// Puts the model's path before a message that does not name it.
template <typename T>
Result<T> about(const std::string& path, Result<T> result) {
  if (result.ok()) return result;
  const Status status = result.status();
  if (status.message().find(": error: ") != std::string::npos) return status;
  return Status(status.code(), fmt::format("{}: error: {}", path, status.message()));
}

Result<Imported> import_model(const CompileOptions& options) {
  ImportOptions import;
  import.dims = options.dims;
  import.freeze = options.freeze;
  if (options.model_bytes) {
    return import_onnx_bytes(*options.model_bytes, options.model, "", import);
  }
  return import_onnx(options.model, import);
}

std::string print_problem(const std::unique_ptr<const Problem>& problem) {
  return print_blocks(problem->blocks, problem->graph);
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
            load_dqn_trainer(options.dqn, start, options.seed));
  return make_learning_refiner(std::move(trainer), options.episodes, options.dqn.lambda);
}

/// Into how many micro-batches a batch divides: "divide into 1 or 4093 equal micro-batches only",
/// "divide into 1, 2, 23, 46, 89, 178, ... equal micro-batches only".
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

/// "nearest batches that divide well: 4092 and 4095 (--batch, or training.batch in ...)".
std::string near_text(const NearBatches& near) {
  std::string text =
      near.below == 0 || near.above == 0
          ? fmt::format("batch that divides well: {}", near.below + near.above)
          : fmt::format("batches that divide well: {} and {}", near.below, near.above);
  return "nearest " + text + " (--batch, or training.batch in the cluster file)";
}

/// What is lost because micro-batches are equal; empty where nothing is.
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

/// `plan_problem`. Where nothing fits the message says so if another batch would.
Result<Planned> plan_or_say_why(const Problem& problem, const PlanOptions& options) {
  Result<Planned> planned = plan_problem(problem, options);
  if (planned.ok() || planned.status().code() != StatusCode::kInfeasible) return planned;
  AGPCS_TRY(const auto better, better_batch(problem, options, std::nullopt));
  if (!better) return planned;
  const std::int64_t batch = problem.training.batch;
  return Status(
      StatusCode::kInfeasible,
      fmt::format("{}\n  hint: {} samples {}; a batch of {} fits; {}", planned.status().message(),
                  batch, division_text(batch), better->batch, near_text(better->near)));
}

/// Says how far a search is, now and then.
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

}  // namespace

Result<Compiled> compile(const CompileOptions& options, CompileStages& stages) {
  AGPCS_TRY(CalibratedCluster calibrated,
            stages.run(
                "cluster", [&] { return read_cluster_file(options); },
                [](const CalibratedCluster& c) { return print_cluster(c.file.cluster); }));
  ClusterFile& file = calibrated.file;
  stages.warn(file.warnings);
  AGPCS_TRY(Imported imported, stages.run(
                                   "import", [&] { return import_model(options); },
                                   [](const Imported& i) { return print_graph(i.graph); }));
  stages.warn(imported.warnings);
  Training& training = file.training;
  AGPCS_TRY(Graph graph, stages.run(
                             "loss",
                             [&] {
                               return about(options.model,
                                            attach_loss(std::move(imported.graph), training.loss));
                             },
                             print_graph));
  AGPCS_TRY(graph,
            stages.run(
                "backward", [&] { return about(options.model, derive_backward(std::move(graph))); },
                print_graph));
  Compiled compiled;
  compiled.fits = std::move(calibrated.fits);
  AGPCS_TRY(compiled.problem, stages.run(
                                  "blocks",
                                  [&] {
                                    return Problem::make(std::move(graph), std::move(file.cluster),
                                                         training, options.problem);
                                  },
                                  print_problem));
  PlanOptions plan;
  plan.seed = options.seed;
  plan.seeders = options.seeders;
  if (!options.layout.empty()) {
    AGPCS_TRY(plan.layout, parse_layout(options.layout, compiled.problem->cluster));
  }
  AGPCS_TRY(const std::unique_ptr<Refiner> refiner, chosen_refiner(options));
  plan.refiner = refiner->name() == "none" ? nullptr : refiner.get();
  plan.budget = options.budget;
  if (plan.budget == 0 && options.episodes > 0) {
    plan.budget = options.episodes * options.dqn.episode_steps + 2000;
  }
  plan.all_reduce = all_reduce_choice_named(options.all_reduce).value();
  plan.threads = options.threads;
  plan.interrupted = options.interrupted;
  plan.search_progress = SearchProgress(stages.progress());
  plan.progress = [&](std::string_view what, int number, int of) {
    stages.progress().step(fmt::format("plan {}/{}: {}", number, of, what));
  };
  AGPCS_TRY(compiled.planned, stages.run(
                                  "plan", [&] { return plan_or_say_why(*compiled.problem, plan); },
                                  [&](const Planned& p) {
                                    return print_strategy(p.best.strategy, compiled.problem->graph,
                                                          compiled.problem->cluster);
                                  }));
  if (!compiled.planned.refinement.interrupted) {
    const double seconds = compiled.planned.best.estimate.step_seconds;
    AGPCS_TRY(const auto better, better_batch(*compiled.problem, plan, seconds));
    stages.warn(batch_warning(training.batch, seconds, better));
  }
  return compiled;
}

}  // namespace agpcs
