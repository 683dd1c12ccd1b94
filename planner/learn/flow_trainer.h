// SPDX-License-Identifier: Apache-2.0
// FlowTrainer: trains one of the paper's two policies while the other one is frozen (Algorithm 1),
// by the clipped policy gradient, in LibTorch.
#pragma once

#include "planner/flow_episode.h"
#include "planner/flow_policy.h"

#include <agpcs/status.h>

#include <cstdint>
#include <memory>

namespace agpcs {

struct FlowTrainingOptions {
  int hidden_units = 16;  ///< of both networks, where they begin anew
  double learning_rate = 0.01;
  int episodes = 8;  ///< drawn of a forest, then learned from together
  int epochs = 3;    ///< gradient steps on them
  FlowRewards rewards;
  FlowObjective objective;
  double averaging = 0.98;  ///< what a step leaves of the mean of those before
  bool guess = true;        ///< new networks begin as the formula; else at random, as in the paper
};

/// What one step of lines 5 to 7 or 9 to 11 of Algorithm 1 came to.
struct FlowTrainingLog {
  double rounds = 0;    ///< mean of the episodes
  double bound = 0;     ///< of the forest's heaviest link
  double returns = 0;   ///< mean sum of rewards, not discounted
  double selected = 1;  ///< part of the decisions on trees that selected one
  double loss = 0, entropy = 0;
};

class FlowTrainer {
 public:
  virtual ~FlowTrainer() = default;
  /// Draws episodes of `level` on the forest and trains that level on them. The other level's
  /// network stays as it is, bit by bit.
  virtual FlowTrainingLog train(const Topology& topology, const FlowForest& forest,
                                FlowPhases phases, FlowLevel level, Rng rng) = 0;
  virtual const FlowPolicy& policy() const = 0;
  /// Its mean over the steps so far, recent ones most: what jumps about from forest to forest evens
  /// out (Polyak and Juditsky, 1992).
  virtual const FlowPolicy& averaged() const = 0;
};

/// `start`: a policy to go on from; null: a new one from `seed`. One thread, so that the same calls
/// give the same policy.
std::unique_ptr<FlowTrainer> make_flow_trainer(const FlowTrainingOptions& options,
                                               const FlowPolicy* start, std::uint64_t seed);

}  // namespace agpcs
