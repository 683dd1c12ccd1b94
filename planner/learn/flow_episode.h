// SPDX-License-Identifier: Apache-2.0
// Episodes from which the two policies learn (the paper, sections 4.3 and 4.4): what a level saw
// and did, its rewards (3), (4) and (5), and the gradient of the clipped objective (Schulman et
// al., Proximal Policy Optimization, 2017) by the values that its network gave. This file needs no
// LibTorch.
#pragma once

#include "ir/base/rng.h"
#include "planner/flows/policy/policy.h"

#include <cstddef>
#include <span>
#include <vector>

namespace agpcs {

enum class FlowLevel { kTrees, kWorkloads };

struct FlowRewards {
  double discount = 0.95;    ///< factor for a round later
  double rounds_weight = 0;  ///< not in the paper: at the end, minus this x (rounds / bound - 1)
};

/// The decisions of the level that learns. The other level is frozen and decides as in
/// `play_policy`.
struct FlowEpisode {
  /// A choice of one row among several (a workload), or of a single row or not (a tree).
  struct Step {
    int round = 0;
    int first = 0, count = 0;  ///< range of `choices`
    int chosen = -1;           ///< index within that range; -1: the tree was not selected
    double chance = 0;         ///< log of its probability when it was drawn
  };
  FlowLevel level = FlowLevel::kWorkloads;
  std::vector<float> rows;   ///< features that the network judged
  std::vector<int> choices;  ///< rows
  std::vector<Step> steps;
  std::vector<double> rewards;  ///< by round
  double last_reward = 0;       ///< for the whole episode, not discounted
  int rounds = 0;
  double bound = 1;  ///< rounds that the forest's heaviest link needs
};

/// Plays one episode in which `level` draws from its probabilities. A round's reward is
///   for trees: sent / all workloads + 0.1 x selected / all trees, and 10 when done,
///              else - all trees / all workloads                                     (3), (4)
///   for workloads: 1 / all workloads for each that is taken                            (5).
/// Only trees with a ready workload are decided on and count as selected.
FlowEpisode draw_episode(const Topology& topology, const FlowForest& forest, FlowPhases phases,
                         const FlowPolicy& policy, FlowLevel level, const FlowRewards& rewards,
                         Rng rng);

/// Returns [episode][round]: the discounted rewards from each round on, less the average that the
/// other episodes (on the same forest) had from that round on, all divided by their standard
/// deviation.
std::vector<std::vector<double>> advantages_of(std::span<const FlowEpisode> episodes,
                                               double discount);

struct FlowObjective {
  double clip = 0.2;
  double entropy = 0.003;  ///< weight of the entropy of choices
};
struct FlowLoss {
  double loss = 0;  ///< mean over the steps
  double entropy = 0;
};
/// Adds the gradient of the loss by value to `gradient`, and returns the loss. `values`: the
/// network's value of each row. `steps`: the steps of all episodes together.
FlowLoss add_gradient(const FlowEpisode& episode, std::span<const double> advantages,
                      std::span<const float> values, const FlowObjective& objective,
                      std::size_t steps, std::span<float> gradient);

}  // namespace agpcs
