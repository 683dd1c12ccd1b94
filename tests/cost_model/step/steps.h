// SPDX-License-Identifier: Apache-2.0
// Problems whose step can be computed by hand: a chain of equal matrix products on round figures.
#pragma once

#include "cost_model/step/cost_table.h"
#include "cost_model/step/simulator.h"
#include "tests/support/builders.h"
#include "tests/support/plan_builders.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

namespace agpcs::testing {

/// h1 = x w1, h2 = h1 w2, ... over 64 features. The input is given a gradient, so that all
/// operators cost the same, backward too.
inline Graph chain_of(int operators) {
  std::string text = "input h0 [n,64]\n";
  for (int i = 1; i <= operators; ++i) {
    const std::string k = std::to_string(i), before = std::to_string(i - 1);
    text += "parameter w" + k + " [64,64]\n";
    text += "h" + k + " = MatMul(h" + before + ", w" + k + ") [n,64]\n";
  }
  const std::string last = "h" + std::to_string(operators);
  Graph graph = graph_of(text + "outputs " + last + "\nloss " + last + "\n");
  graph.tensor(graph.find_tensor("h0")).needs_gradient = true;
  return graph;
}

/// Memory so fast that arithmetic alone counts, and launches for free.
constexpr const char* kUnit = "kind unit fp32=1e12 bandwidth=1e30 launch=0\n";
/// Links so fast that communication takes no time.
constexpr const char* kInstant = " bandwidth=1e30 latency=0 nic=1e30 nic-latency=0\n";

/// A graph, a cluster, a plan for them, and costs.
struct Step {
  Graph graph;
  Cluster cluster;
  Plan plan;
  std::unique_ptr<CostTable> costs;  // refers to `graph`

  Step(Graph g, const std::string& cluster_text, const std::string& strategy, std::int64_t batch)
      : graph(std::move(g)), cluster(cluster_of(cluster_text)) {
    plan = plan_of(graph, cluster, strategy, batch);
    Result<CostTable> made = CostTable::make(graph, cluster, plan.training);
    AGPCS_CHECK(made.ok(), "{}", made.status().message());
    costs = std::make_unique<CostTable>(*std::move(made));
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  Result<Estimate> try_simulate() const {
    return agpcs::simulate(plan, graph, cluster, *costs, {.timeline = true});
  }
  Estimate simulate() const {
    Result<Estimate> estimate = try_simulate();
    AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
    return *std::move(estimate);
  }
  /// Of the first operator with `samples` samples on kind 0.
  OpSeconds seconds(std::int64_t samples) const { return costs->seconds(0, 0, samples); }
};

/// The event of `rank` that executes `id`.
inline TimelineEvent event_of(const Estimate& estimate, int rank, InstructionId id) {
  for (const TimelineEvent& event : estimate.timeline) {
    if (event.rank == rank && event.instruction == id) return event;
  }
  AGPCS_CHECK(false, "rank {} does not execute {}", rank, name_of(id));
}

/// p stages of one operator and one device each, m micro-batches of 8 samples.
inline Step pipeline(int p, int m, const std::string& schedule, const std::string& links) {
  std::string strategy = fmt::format("micro-batches {} {}\n", m, schedule);
  for (int i = 0; i < p; ++i) strategy += fmt::format("stage a/{}=8 : h{}\n", i, i + 1);
  return {chain_of(p), fmt::format("{}host a unit {}{}", kUnit, p, links), strategy, 8 * m};
}

}  // namespace agpcs::testing
