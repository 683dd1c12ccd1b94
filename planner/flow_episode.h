// SPDX-License-Identifier: Apache-2.0
// Episodes that the two policies learn from (the paper, sections 4.3 and 4.4): what a level saw and
// did, its rewards (3), (4) and (5), and the gradient of the clipped objective (Schulman et al.,
// Proximal Policy Optimization, 2017) by the values that its network gave. No LibTorch here.
#pragma once

#include "ir/rng.h"
#include "planner/flow_policy.h"

#include <cstddef>
#include <span>
#include <vector>

namespace agpcs {

enum class FlowLevel { kTrees, kWorkloads };

struct FlowRewards {
  double discount = 0.95;    ///< of a round later
  double rounds_weight = 0;  ///< not in the paper: minus that x (rounds / bound - 1) in the end
};

/// What the level that learns decided; the other one is frozen and decides as in `play_policy`.
struct FlowEpisode {
  /// A choice of one row among several (a workload), or whether a single row is chosen (a tree).
  struct Step {
    int round = 0;
    int first = 0, count = 0;  ///< of `choices`
    int chosen = -1;           ///< among those; -1: the tree was not selected
    double chance = 0;         ///< log of its probability when it was drawn
  };
  FlowLevel level = FlowLevel::kWorkloads;
  std::vector<float> rows;   ///< features that the network judged
  std::vector<int> choices;  ///< rows
  std::vector<Step> steps;
  std::vector<double> rewards;  ///< by round
  double last_reward = 0;       ///< of the whole episode, not discounted
  int rounds = 0;
  double bound = 1;  ///< rounds that the forest's heaviest link needs
};

/// One episode in which `level` draws from its probabilities. A round's reward is
///   of trees: sent / all workloads + 0.1 x selected / all trees, and 10 when done,
///             else - all trees / all workloads                                    (3), (4)
///   of workloads: 1 / all workloads for each that is taken                             (5).
/// Only trees that have a workload ready are decided on and count as selected.
FlowEpisode draw_episode(const Topology& topology, const FlowForest& forest, FlowPhases phases,
                         const FlowPolicy& policy, FlowLevel level, const FlowRewards& rewards,
                         Rng rng);

/// Discounted rewards from each round on, less what the other episodes (of the same forest) had
/// from that round on, on average; all over their standard deviation. [episode][round].
std::vector<std::vector<double>> advantages_of(std::span<const FlowEpisode> episodes,
                                               double discount);

struct FlowObjective {
  double clip = 0.2;
  double entropy = 0.003;  ///< weight of the entropy of choices
};
struct FlowLoss {
  double loss = 0;  ///< a step
  double entropy = 0;
};
/// `values`: what the network says of each row. Adds the loss' gradient by value to `gradient`,
/// over `steps` steps in all.
FlowLoss add_gradient(const FlowEpisode& episode, std::span<const double> advantages,
                      std::span<const float> values, const FlowObjective& objective,
                      std::size_t steps, std::span<float> gradient);

}  // namespace agpcs
