// SPDX-License-Identifier: Apache-2.0
// FlowTrainer: trains one of the paper's two policies while the other is frozen (Algorithm 1), by
// the clipped policy gradient, in LibTorch.
#pragma once

#include "planner/flows/policy/policy.h"
#include "planner/learn/flow_episode.h"

#include <agpcs/status.h>

#include <cstdint>
#include <memory>

namespace agpcs {

struct FlowTrainingOptions {
  int hidden_units = 16;  ///< units of both networks, if they are new
  double learning_rate = 0.01;
  int episodes = 8;  ///< drawn on a forest, then learned from together
  int epochs = 3;    ///< gradient steps on these
  FlowRewards rewards;
  FlowObjective objective;
  double averaging = 0.98;  ///< part of the mean so far that a step leaves
  bool guess = true;        ///< begins as the formula; else at random, as in the paper
};

/// The results of one step: lines 5 to 7 or 9 to 11 of Algorithm 1.
struct FlowTrainingLog {
  double rounds = 0;    ///< mean over the episodes
  double bound = 0;     ///< rounds that the forest's heaviest link needs
  double returns = 0;   ///< mean sum of rewards, not discounted
  double selected = 1;  ///< part of the decisions on trees that selected one
  double loss = 0, entropy = 0;
};

class FlowTrainer {
 public:
  virtual ~FlowTrainer() = default;
  /// Draws episodes of `level` on the forest and trains that level on them. The other level's
  /// network stays the same, bit by bit.
  virtual FlowTrainingLog train(const Topology& topology, const FlowForest& forest,
                                FlowPhases phases, FlowLevel level, Rng rng) = 0;
  virtual const FlowPolicy& policy() const = 0;
  /// Returns the policy's mean over the steps so far, with most weight on recent ones. It evens out
  /// what jumps about from forest to forest (Polyak and Juditsky, 1992).
  virtual const FlowPolicy& averaged() const = 0;
};

/// Makes a trainer. `start`: a policy to go on from; null: a new one from `seed`. It uses one
/// thread, so that the same calls give the same policy.
std::unique_ptr<FlowTrainer> make_flow_trainer(const FlowTrainingOptions& options,
                                               const FlowPolicy* start, std::uint64_t seed);

}  // namespace agpcs
