// SPDX-License-Identifier: Apache-2.0
#include "tools/compile_pipeline.h"

#include "frontend/import_onnx.h"
#include "ir/strategy.h"
#include "ir/training_graph.h"
#include "tools/calibrated_cluster.h"

#include <fmt/format.h>

namespace agpcs {
namespace {

Result<CalibratedCluster> read_cluster_file(const CompileOptions& options) {
  AGPCS_TRY(CalibratedCluster calibrated, read_calibrated_cluster(options.cluster));
  ClusterFile& file = calibrated.file;
  if (options.batch > 0) file.training.batch = options.batch;
  if (!options.precision.empty()) file.training.precision = options.precision;
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

ImportOptions import_options(const CompileOptions& options) {
  ImportOptions import;
  import.dims = options.dims;
  return import;
}

std::string print_problem(const std::unique_ptr<const Problem>& problem) {
  return print_blocks(problem->blocks, problem->graph);
}

}  // namespace

Result<Compiled> compile(const CompileOptions& options, CompileStages& stages) {
  AGPCS_TRY(CalibratedCluster calibrated,
            stages.run(
                "cluster", [&] { return read_cluster_file(options); },
                [](const CalibratedCluster& c) { return print_cluster(c.file.cluster); }));
  ClusterFile& file = calibrated.file;
  stages.warn(file.warnings);
  AGPCS_TRY(Imported imported,
            stages.run(
                "import", [&] { return import_onnx(options.model, import_options(options)); },
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
