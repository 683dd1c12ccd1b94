// SPDX-License-Identifier: Apache-2.0
// The problems that a policy is trained on, each with solutions to begin from.
#pragma once

#include "planner/problem.h"
#include "planner/strategy_search.h"
#include "tools/train_policy.h"

#include <agpcs/status.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

struct PolicyProblem {
  std::string name;
  std::unique_ptr<const Problem> problem;
  std::vector<Strategy> starts;  ///< of the seeders, the best first; none: skip it
  std::vector<Strategy> found;   ///< the best that training came to; none or one
  double best_cost = 1;          ///< of `found`, relative to the first start

  /// Stands at the first start; `found` is the last of its starts.
  std::unique_ptr<StrategySearch> search(int threads) const;
};

/// Draws `options.problems` + `options.validation_problems` problems; the latter come last. Every
/// fourth is a model of `options.models`, the others are generated. Fewer when interrupted.
/// Errors: a model that cannot be read.
Result<std::vector<PolicyProblem>> draw_problems(const TrainPolicyOptions& options,
                                                 const std::atomic<bool>& interrupted,
                                                 Progress& progress);

}  // namespace agpcs
