// SPDX-License-Identifier: Apache-2.0
// Problems that tests of the planner share.
#pragma once

#include "codegen/lower.h"
#include "ir/base/check.h"
#include "planner/problem/problem.h"
#include "tests/support/builders.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace agpcs::testing {

/// A chain of `layers` equal layers of `width` units, with a loss.
inline Graph chain(int layers, int width = 256) {
  std::string text = "input x [n," + std::to_string(width) + "]\ninput labels int64[n]\n";
  std::string last = "x";
  const std::string square = "[" + std::to_string(width) + "," + std::to_string(width) + "]";
  const std::string rows = "[n," + std::to_string(width) + "]";
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i);
    text += "parameter w" + n + " " + square + "\n";
    text += "h" + n + " = MatMul(" + last + ", w" + n + ") " + rows + "\n";
    text += "a" + n + " = Relu(h" + n + ") " + rows + "\n";
    last = "a" + n;
  }
  text += "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last + "\nloss l\n";
  return graph_of(text);
}

/// Two fast devices and two of a third of their speed, one host each.
inline Cluster fast_and_slow(const std::string& memory = "16e9", const std::string& nic = "3e9") {
  return cluster_of("kind fast memory=" + memory + " bandwidth=900e9 fp32=15e12\n" +
                    "kind slow memory=" + memory + " bandwidth=300e9 fp32=5e12\n" +
                    "host a fast 2 nic=" + nic + "\nhost b slow 2 nic=" + nic + "\n");
}

inline std::unique_ptr<const Problem> problem_of(Graph graph, Cluster cluster, std::int64_t batch,
                                                 const ProblemOptions& options = {},
                                                 std::optional<DType> wire_type = {}) {
  Training training = training_of(graph, batch);
  training.wire_type = wire_type;
  auto problem = Problem::make(std::move(graph), std::move(cluster), training, options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return std::move(*problem);
}

inline Plan lowered(const Problem& problem, const Strategy& strategy) {
  return *lower(problem.graph, problem.cluster, problem.training, strategy, MadeBy());
}

/// One stage of all operators on all devices, with equal shares.
inline Strategy on_all(const Problem& problem) {
  Strategy strategy;
  strategy.stage_of.assign(problem.graph.ops.size(), 0);
  StageSpec spec;
  for (DeviceId d = 0; d < problem.cluster.device_count(); ++d) {
    spec.devices.push_back(d);
    spec.shares.push_back(problem.training.batch / problem.cluster.device_count());
  }
  strategy.stages = {spec};
  return strategy;
}

}  // namespace agpcs::testing
