// SPDX-License-Identifier: Apache-2.0
// Plans for tests: text of graph, cluster and strategy in, a lowered and verified plan out.
#pragma once

#include "codegen/lower.h"
#include "tests/support/builders.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace agpcs::testing {

/// Ends the test program when `strategy` cannot be lowered or its plan does not verify. The plan
/// has placeholder expectations, so that its text can be parsed. Stages with `state=optimizer`
/// divide Adam's; other plans have SGD.
inline Plan plan_of(const Graph& graph, const Cluster& cluster, const std::string& strategy,
                    std::int64_t batch) {
  const Strategy lowered = strategy_of(strategy, graph, cluster);
  const Status valid = verify_strategy(lowered, graph, cluster, batch);
  AGPCS_CHECK(valid.ok(), "{}", valid.message());
  Training training = training_of(graph, batch);
  if (strategy.find("state=optimizer") != std::string::npos) {
    training.optimizer.kind = OptimizerKind::kAdam;
  }
  Result<Plan> plan = lower(graph, cluster, training, lowered,
                            {.version = "0.1.0", .seed = 7, .seeder = "test", .refiner = "none"});
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  for (const std::string& name : expectation_names(*plan)) {
    const std::size_t index = plan->expect.size();
    plan->expect.push_back(
        {name, 0.25 * static_cast<double>(index + 1), std::string(expectation_unit(name))});
  }
  const Status verified = verify_plan(*plan);
  AGPCS_CHECK(verified.ok(), "{}\n{}", verified.message(), print_plan(*plan));
  return *std::move(plan);
}

}  // namespace agpcs::testing
