// SPDX-License-Identifier: Apache-2.0
// Problem: the input of planning. `evaluate` compares strategies for it.
#pragma once

#include "codegen/lower.h"
#include "cost_model/step/cost_table.h"
#include "cost_model/step/simulator.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"
#include "planner/problem/blocks.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstdint>
#include <memory>

namespace agpcs {

/// The most samples in a step. More are a mistake; up to here no sum of bytes overflows.
inline constexpr std::int64_t kMostSamples = std::int64_t{1} << 24;
/// The most micro-batches in a step. More of them would only keep devices waiting.
inline constexpr std::int64_t kMostMicroBatches = 4096;

struct ProblemOptions {
  std::int64_t bucket_bytes = 0;   ///< most bytes of gradients in a bucket; 0: the planner chooses
  std::int64_t micro_batches = 0;  ///< 0: the planner chooses
  Ranks ranks = Ranks::kUsed;      ///< the ranks that plans have
  int most_blocks = 1000;          ///< blocks of a coarsened graph, about (`BlockOptions`)
  /// The most that stages may divide (`StageSpec::state`).
  StateLevel most_divided = StateLevel::kParameters;
  bool choose_in_flight = true;     ///< stages may differ from 1F1B's textbook (`StageSpec`)
  bool part_backward = true;        ///< backward passes may be parted (Schedule::kZeroBubble)
  bool choose_segments = true;      ///< stages may recompute in parts (`Recomputation`)
  bool choose_teams = false;        ///< replicas of stages may be teams (docs/design/teams.md)
  bool choose_unlike = true;        ///< those of one stage may have unlike numbers of members
  bool offload = true;              ///< state may be in the memory of hosts (`StageSpec`)
  bool offload_activations = true;  ///< so may activations (`Recomputation`)
  bool cut_modules = true;          ///< stages may have parts of modules (`BlockOptions`)
};

/// A model, a cluster and a training, with what every seeder needs of them. A problem is made in
/// place and neither moves nor changes, because its cost table refers to its graph.
struct Problem {
  /// Needs: `graph` is a training graph (loss attached, backward derived). Errors: there is no
  /// batch, or one of more than kMostSamples; the number of micro-batches is more than that of
  /// samples or than kMostMicroBatches; no module may be cut and no operator knows its module; a
  /// device kind has no peak for the precision. kUsage: the training has a wire type, but no
  /// gradient is fp32. Cost: O(operators + edges).
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

/// Returns whether stages may divide what `level` says: it is not ruled out, and the optimizer
/// remembers something. Where it does not, plans divide no gradients either: they take little then,
/// and bounds are nearer.
bool may_divide(const Problem& problem, StateLevel level);

/// Returns whether stages may have their state in the memory of hosts: it is not ruled out, and the
/// optimizer and the cluster have what that needs.
bool may_offload(const Problem& problem);
/// Returns whether stages may have activations there: that is not ruled out, they may have
/// segments, and the cluster has what that needs.
bool may_offload_activations(const Problem& problem);
/// Returns whether stages may have one of these there.
bool may_use_hosts(const Problem& problem);

/// The gradient of a trained parameter.
struct GradientSize {
  DType held = DType::kFp32;
  std::int64_t elements = 0;
  std::int64_t held_bytes = 0;
  std::int64_t travelling_bytes = 0;  ///< bytes sent where it is summed over devices
  /// Extra memory where it is summed over devices: the rounded copy that is sent.
  std::int64_t rounded_bytes = 0;
};
GradientSize gradient_of(const Problem& problem, TensorId parameter);

/// A strategy with its plan and the simulator's estimate of it.
struct Evaluated {
  Strategy strategy;
  Plan plan;
  Estimate estimate;
};

}  // namespace agpcs
