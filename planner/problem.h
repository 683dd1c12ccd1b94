// SPDX-License-Identifier: Apache-2.0
// Problem: what is to be planned. Strategies compete on `evaluate`.
#pragma once

#include "codegen/lower.h"
#include "cost_model/cost_table.h"
#include "cost_model/simulator.h"
#include "ir/cluster.h"
#include "ir/graph.h"
#include "ir/strategy.h"
#include "planner/blocks.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstdint>
#include <memory>

namespace agpcs {

/// Larger steps are mistakes; up to here no sum of bytes overflows.
inline constexpr std::int64_t kMostSamples = std::int64_t{1} << 24;
/// A plan spells out every micro-batch; more of them would only keep devices waiting.
inline constexpr std::int64_t kMostMicroBatches = 4096;

struct ProblemOptions {
  std::int64_t bucket_bytes = 0;   ///< most bytes of gradients in a bucket; 0: the planner chooses
  std::int64_t micro_batches = 0;  ///< 0: the planner chooses
  Ranks ranks = Ranks::kUsed;      ///< that plans have
  int most_blocks = 1000;          ///< that graphs are coarsened to, about (`BlockOptions`)
};

/// A model, a cluster and a training, with everything that every seeder needs of them. Made in
/// place: the cost table refers to the graph, so a problem neither moves nor changes.
struct Problem {
  /// `graph` is a training graph (loss attached, backward derived). Errors: no batch or one of
  /// more than kMostSamples, a number of micro-batches that does not divide it or is more than
  /// kMostMicroBatches, a device kind without a peak for the precision; kUsage: a wire type, and no
  /// gradient of fp32.
  /// Cost: O(operators + edges).
  static Result<std::unique_ptr<const Problem>> make(Graph graph, Cluster cluster,
                                                     Training training,
                                                     const ProblemOptions& options = {});
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  Graph graph;
  Cluster cluster;
  Training training;
  ProblemOptions options;
  CostTable costs;
  BlockGraph blocks;

 private:
  Problem() = default;
};

/// The gradient of a trained parameter.
struct GradientSize {
  DType held = DType::kFp32;
  std::int64_t elements = 0;
  std::int64_t held_bytes = 0;
  std::int64_t travelling_bytes = 0;  ///< while it is summed over devices
  /// In memory besides, where it is summed over devices: what it is rounded to for that.
  std::int64_t rounded_bytes = 0;
};
GradientSize gradient_of(const Problem& problem, TensorId parameter);

/// A strategy with its plan and what the simulator says of it.
struct Evaluated {
  Strategy strategy;
  Plan plan;
  Estimate estimate;
};

}  // namespace agpcs
