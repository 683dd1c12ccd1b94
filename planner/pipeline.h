// SPDX-License-Identifier: Apache-2.0
// The pipeline: all stages of a compilation, from a cluster and a model to a plan.
#pragma once

#include "cost_model/fit/calibrate.h"
#include "ir/graph/graph.h"
#include "planner/plan_problem.h"
#include "planner/problem/problem.h"
#include "planner/stage_values.h"
#include "planner/stages.h"

#include <agpcs/status.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// Where the pipeline begins: with files, which the caller reads, or with a problem.
struct PipelineInput {
  std::function<Result<ClusterAndTraining>()> read_cluster;
  std::function<Result<Graph>()> read_model;  ///< the forward graph
  std::string model;                          ///< what messages call the model: its path
  ProblemOptions problem_options;
  /// The options of planning. They may name devices, so they are asked for when these are known.
  std::function<Result<PlanOptions>(const Problem&)> options;

  const Problem* problem = nullptr;  ///< given: the stages before "seed" are left out
};

/// What comes of the pipeline.
struct Compiled {
  std::vector<FitReport> fits;             ///< fits to the profiles of the cluster
  std::unique_ptr<const Problem> problem;  ///< null where the input has one
  Planned planned;
  bool interleave = false;  ///< as `PlanOptions::interleave` says
};

/// Runs all stages in their order. `compiled` keeps what was made before an error, or a driver that
/// was asked to, ends the pipeline. Errors: those of the stages and of the driver.
Status run_pipeline(const PipelineInput& input, Stages& stages, Compiled& compiled);

}  // namespace agpcs
