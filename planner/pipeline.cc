// SPDX-License-Identifier: Apache-2.0
#include "planner/pipeline.h"

#include "ir/graph/fused_attention.h"
#include "ir/graph/training_graph.h"
#include "planner/evaluate/evaluator.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace agpcs {
namespace {

/// Puts the model's path before a message that does not name it.
Result<Graph> about(const std::string& path, Result<Graph> result) {
  if (result.ok()) return result;
  const Status status = result.status();
  if (status.message().find(": error: ") != std::string::npos) return status;
  return Status(status.code(), fmt::format("{}: error: {}", path, status.message()));
}

}  // namespace

Status run_pipeline(const PipelineInput& in, Stages& stages, Compiled& out) {
  if (in.problem == nullptr) {
    const StageValue<Graph> as_graph = graph_value();
    // Devices and links, with costs fitted to what was measured; and what is asked of the training.
    AGPCS_TRY(ClusterAndTraining on, stages.run("cluster", cluster_value(), in.read_cluster));
    out.fits = std::move(on.fits);
    // The forward graph: only what computes, with shapes affine in the number of samples.
    AGPCS_TRY(Graph graph, stages.run("import", as_graph, in.read_model));
    // What the model is trained for; the loss is part of the graph from here on.
    AGPCS_TRY(graph, stages.run("loss", as_graph, [&] {
      return about(in.model, attach_loss(std::move(graph), on.training.loss));
    }));
    // What each backward computes, which gradients it makes, and which activations it keeps.
    AGPCS_TRY(graph, stages.run("backward", as_graph, [&] {
      Result<Graph> derived = derive_backward(std::move(graph));
      if (derived.ok() && on.training.attention == AttentionForm::kFused) fuse_attention(*derived);
      return about(in.model, std::move(derived));
    }));
    // Blocks of operators, so that planning is fast; no cut worth making is lost.
    AGPCS_TRY(out.problem, stages.run("blocks", problem_value(), [&] {
      return Problem::make(std::move(graph), std::move(on.cluster), on.training,
                           in.problem_options);
    }));
  }
  const Problem& problem = in.problem != nullptr ? *in.problem : *out.problem;
  AGPCS_TRY(const PlanOptions options, in.options(problem));
  out.interleave = options.interleave;
  Evaluator evaluator(problem);  // one judge for all stages, which remembers what it has seen
  const StageValue<Decision> as_decision = decision_value(problem);
  // A plan at once, to show, and to write if planning is interrupted before there is a better one.
  const std::optional<Seed> first =
      stages.beside("first", [&] { return first_seed(problem, evaluator, options); });
  // Beside the plan: what no plan's step can go below.
  if (options.bound) {
    out.planned.bound = stages.beside("bound", [&] { return lower_bound(problem); });
    if (options.bounded) options.bounded(*out.planned.bound);
  }
  // Candidates of every seeder: where a search begins decides where it ends.
  AGPCS_TRY(Seeds seeds, stages.run("seed", seeds_value(problem),
                                    [&] { return seed(problem, evaluator, options, first); }));
  // Beside the plan: what users have without a planner.
  AGPCS_TRY(out.planned.baselines, stages.beside("baselines", [&] {
    return measure_baselines(problem, evaluator, options);
  }));
  // A search from the best of them, which finds what no seeder proposes.
  AGPCS_TRY(Decision decision, stages.run("refine", as_decision, [&] {
    return refine(problem, evaluator, seeds, options);
  }));
  // Buckets of gradients, where the search left them open, so that all-reduces end early.
  AGPCS_TRY(decision, stages.run("group", as_decision,
                                 [&] { return group(evaluator, std::move(decision)); }));
  // All-reduces made for the network, only where a step gets shorter: searches do not see them.
  AGPCS_TRY(decision, stages.run("flows", as_decision, [&] {
    return flows(problem, evaluator, seeds, options, std::move(decision));
  }));
  out.planned.seeders = std::move(seeds.attempts);
  out.planned.refinement = std::move(decision.refinement);
  // One instruction program a stage, and what the simulator expects of it.
  AGPCS_TRY(out.planned.best, stages.run("lower", plan_value(problem),
                                         [&] { return lower(problem, std::move(decision)); }));
  return {};
}

Result<Planned> plan_problem(const Problem& problem, const PlanOptions& options) {
  PipelineInput input;
  input.problem = &problem;
  input.options = [&options](const Problem&) -> Result<PlanOptions> { return options; };
  Stages silent;
  Compiled compiled;
  AGPCS_RETURN_IF_ERROR(run_pipeline(input, silent, compiled));
  return std::move(compiled.planned);
}

}  // namespace agpcs
