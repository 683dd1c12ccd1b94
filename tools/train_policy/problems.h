// SPDX-License-Identifier: Apache-2.0
// Draws the problems that a policy is trained on, each with solutions to begin from.
#pragma once

#include "planner/problem/problem.h"
#include "planner/refine/search.h"
#include "tools/train_policy/policy.h"

#include <agpcs/status.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

struct PolicyProblem {
  std::string name;
  std::unique_ptr<const Problem> problem;
  std::vector<Strategy> starts;  ///< from the seeders, the best first; none: the problem is skipped
  std::vector<Strategy> found;   ///< the best strategy that training found; at most one
  double best_cost = 1;          ///< cost of `found`, relative to the first start

  /// Returns a search that stands at the first start; `found` is the last of its starts.
  std::unique_ptr<StrategySearch> search(int threads) const;
};

/// Draws `options.problems` + `options.validation_problems` problems; the latter come last. Every
/// fourth is a model of `options.models`; the others are generated. Returns fewer if interrupted.
/// Errors: a model that cannot be read.
Result<std::vector<PolicyProblem>> draw_problems(const TrainPolicyOptions& options,
                                                 const std::atomic<bool>& interrupted,
                                                 Progress& progress);

}  // namespace agpcs
