// SPDX-License-Identifier: Apache-2.0
// What an evaluator has to say: the score of the plan that `lower` makes, by the simulator.
#pragma once

#include "codegen/lower.h"
#include "cost_model/step/simulator.h"
#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/group_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// What the plan of `strategy` takes, by lower and simulate. No link carries more than it can.
inline Score by_simulation(const Problem& problem, Strategy strategy) {
  if (strategy.buckets.empty()) {
    strategy = group_gradients(problem, std::move(strategy), problem.options.bucket_bytes);
  }
  const Result<Plan> plan =
      lower(problem.graph, problem.cluster, problem.training, strategy, MadeBy());
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  const Result<Estimate> estimate = simulate(*plan, problem.graph, problem.cluster, problem.costs);
  AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
  const Result<std::vector<MemoryUse>> uses = peak_memory(*plan, problem.graph);
  AGPCS_CHECK(uses.ok(), "{}", uses.status().message());
  Score score;
  score.step_seconds = estimate->step_seconds;
  for (const DeviceEstimate& device : estimate->devices) {
    score.exposed_communication += device.exposed_communication;
  }
  score.lacking = memory_fit(problem, strategy, *plan, *uses).lacking();
  std::map<std::string, std::int64_t> hosts;  // by name: bytes of state there
  const std::vector<std::string> devices = devices_of_ranks(*plan);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    hosts[devices[rank].substr(0, devices[rank].rfind('/'))] += (*uses)[rank].host;
  }
  for (const Host& host : problem.cluster.hosts) {
    if (hosts[host.name] == 0) continue;
    score.lacking = std::max(score.lacking, hosts[host.name] - host.memory_bytes);
  }
  for (std::size_t link = 0; link < problem.cluster.links.size(); ++link) {
    const double bandwidth = problem.cluster.links[link].bandwidth;
    EXPECT_LE(static_cast<double>(estimate->link_bytes[link]) / bandwidth,
              score.step_seconds * (1 + 1e-9))
        << "a link carries more than it can";
  }
  return score;
}

inline void expect_equal(const Score& a, const Score& b, const std::string& what) {
  EXPECT_EQ(a.step_seconds, b.step_seconds) << what;
  EXPECT_EQ(a.exposed_communication, b.exposed_communication) << what;
  EXPECT_EQ(a.lacking, b.lacking) << what;
}

}  // namespace agpcs::testing
