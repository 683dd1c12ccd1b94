// SPDX-License-Identifier: Apache-2.0
// What an evaluator has to say: the score of the plan that `lower` makes, by the simulator.
#pragma once

#include "codegen/lower.h"
#include "cost_model/step/simulator.h"
#include "ir/base/check.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/group_gradients.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace agpcs::testing {

/// What the plan of `strategy` takes, by lower and simulate.
inline Score by_simulation(const Problem& problem, Strategy strategy) {
  if (strategy.buckets.empty()) {
    strategy = group_gradients(problem, std::move(strategy), problem.options.bucket_bytes);
  }
  const Result<Plan> plan =
      lower(problem.graph, problem.cluster, problem.training, strategy, MadeBy());
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  const Result<Estimate> estimate = simulate(*plan, problem.graph, problem.cluster, problem.costs);
  AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
  const Result<MemoryFit> fit = memory_fit(problem, strategy, *plan);
  AGPCS_CHECK(fit.ok(), "{}", fit.status().message());
  Score score;
  score.step_seconds = estimate->step_seconds;
  for (const DeviceEstimate& device : estimate->devices) {
    score.exposed_communication += device.exposed_communication;
  }
  score.lacking = fit->lacking();
  return score;
}

inline void expect_equal(const Score& a, const Score& b, const std::string& what) {
  EXPECT_EQ(a.step_seconds, b.step_seconds) << what;
  EXPECT_EQ(a.exposed_communication, b.exposed_communication) << what;
  EXPECT_EQ(a.lacking, b.lacking) << what;
}

}  // namespace agpcs::testing
