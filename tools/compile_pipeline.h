// SPDX-License-Identifier: Apache-2.0
// The compiler's pipeline: from a model and a cluster file to a plan, on one screen.
#pragma once

#include "cost_model/calibrate.h"
#include "frontend/cluster_file.h"
#include "planner/dqn.h"
#include "planner/plan_problem.h"
#include "tools/compile_stages.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct CompileOptions {
  std::string model, cluster;              ///< paths
  std::optional<std::string> model_bytes;  ///< given: the model, and `model` its name in messages
  std::vector<std::pair<std::string, std::int64_t>> dims;
  std::vector<std::string> freeze;  ///< weights that are not trained (frontend/import_onnx.h)
  std::int64_t batch = 0;  ///< 0: training.batch of the cluster file; the same for what is empty
  std::string precision;
  std::string wire_type;  ///< "fp16", "bf16"; empty: gradients travel as they are
  std::optional<Loss> loss;
  ProblemOptions problem;
  std::uint64_t seed = 0;
  std::vector<std::string> seeders;  ///< empty: all
  std::string layout;                ///< `parse_layout`'s text; empty: the seeders decide
  std::string refiner = "dqn";
  std::string policy;         ///< path, for `dqn`; empty: the one that ships
  std::int64_t budget = 0;    ///< evaluations; 0: the planner chooses
  std::int64_t episodes = 0;  ///< `dqn` is first trained that long on this problem
  DqnOptions dqn;
  std::string all_reduce = "auto";
  int threads = 1;
  const std::atomic<bool>* interrupted = nullptr;
};

struct Compiled {
  std::vector<FitReport> fits;  ///< to the profiles of the cluster
  std::unique_ptr<const Problem> problem;
  Planned planned;
};

/// Reads, derives, plans. Needs: `check_compile_options`. Warnings go to the stages' console.
Result<Compiled> compile(const CompileOptions& options, CompileStages& stages);

}  // namespace agpcs
