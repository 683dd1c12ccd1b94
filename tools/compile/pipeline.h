// SPDX-License-Identifier: Apache-2.0
// compile: what agpcs-compile and the Python package do, from files and words to a plan.
#pragma once

#include "planner/pipeline.h"
#include "planner/refine/dqn.h"
#include "tools/common/common.h"
#include "tools/compile/console_stages.h"

#include <agpcs/status.h>
#include <agpcs/training.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct CompileOptions : ModelChoices {
  std::string model, cluster;  ///< paths
  /// If given, this is the model, and `model` is its name in messages.
  std::optional<std::string> model_bytes;
  bool inference_graph = false;  ///< takes a file that was optimized for inference as it is
  /// Devices and the factors by which they compute slower than the cluster file says.
  std::vector<std::pair<std::string, double>> slower;
  /// The devices to plan for, as if the cluster had no others; empty: all of them.
  std::vector<std::string> devices;
  std::int64_t batch = 0;  ///< 0: the cluster file's training.batch
  /// Names, as on the command line. Empty: the cluster file's precision (or, where it has none, the
  /// model's), form of attention and loss; gradients are sent in their own type.
  std::string precision, attention, loss, wire_type;
  /// The loss's outputs and what it says about labels. If there is any, or a name in `loss`, the
  /// cluster file's loss does not count; without the name, the outputs' shapes choose the kind.
  Loss loss_options;
  ProblemOptions problem;
  PlanOptions plan;    ///< `compile` adds what the words below say
  std::string layout;  ///< text for `parse_layout`; empty: the seeders decide
  std::string refiner = "dqn";
  std::string policy;         ///< path, for `dqn`; empty: the policy that is shipped
  std::int64_t episodes = 0;  ///< episodes that `dqn` is trained first on this problem
  DqnOptions dqn;
  std::string all_reduce = "auto";
  std::vector<std::string> without;  ///< of `dimension_words`; for `ProblemOptions`
  std::string space = "whole";       ///< of `space_words`; "today": without every dimension
  std::string cut_at = "operators";  ///< of `cut_words`; for `ProblemOptions::cut_modules`
};

/// Runs the pipeline (planner/pipeline.h) on files. Needs: `check_compile_options`. Warnings go to
/// the stages' console.
Result<Compiled> compile(const CompileOptions& options, ConsoleStages& stages);

/// A model with its loss and its backward pass, and the cluster that trains it.
struct TrainedModel {
  Graph graph;
  Cluster cluster;  ///< as its file has it: what was measured is not fitted
  Training training;
};
/// Reads both, as `compile` does before it plans. Needs: `check_compile_options`.
Result<TrainedModel> read_trained_model(const CompileOptions& options);

}  // namespace agpcs
