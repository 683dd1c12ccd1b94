// SPDX-License-Identifier: Apache-2.0
// How the driver prints and verifies what the stages return.
#pragma once

#include "cost_model/fit/calibrate.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "planner/plan_stages.h"
#include "planner/problem/problem.h"
#include "planner/stages.h"

#include <agpcs/training.h>

#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// What a cluster file says: which devices there are, and how they train.
struct ClusterAndTraining {
  Cluster cluster;  ///< calibrated
  Training training;
  std::vector<FitReport> fits;  ///< to the profiles that the file refers to
};

StageValue<ClusterAndTraining> cluster_value();
StageValue<Graph> graph_value();
StageValue<std::unique_ptr<const Problem>> problem_value();
/// Those that follow refer to `problem`.
StageValue<Seeds> seeds_value(const Problem& problem);
StageValue<Decision> decision_value(const Problem& problem);
StageValue<Evaluated> plan_value(const Problem& problem);

/// A table of all candidates in the order made, a line each: which seeder it is from, what its step
/// takes, the bytes that it lacks, its stages and devices.
std::string print_seeds(const Seeds& seeds);

}  // namespace agpcs
