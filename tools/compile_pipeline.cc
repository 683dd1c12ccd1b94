// SPDX-License-Identifier: Apache-2.0
#include "tools/compile_pipeline.h"

#include "frontend/import_onnx.h"
#include "ir/strategy.h"
#include "ir/training_graph.h"
#include "ir/units.h"
#include "planner/dqn_plugin.h"
#include "tools/calibrated_cluster.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

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
  return make_learning_refiner(std::move(trainer), options.episodes);
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
                                  "plan", [&] { return plan_problem(*compiled.problem, plan); },
                                  [&](const Planned& p) {
                                    return print_strategy(p.best.strategy, compiled.problem->graph,
                                                          compiled.problem->cluster);
                                  }));
  return compiled;
}

}  // namespace agpcs
