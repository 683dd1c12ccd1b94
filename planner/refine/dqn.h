// SPDX-License-Identifier: Apache-2.0
// The DQN of the AGPCS paper (sections 3.2 and 4): its settings, its log, and the refiner that
// searches with a trained network.
#pragma once

#include "planner/refine/q_network.h"
#include "planner/refine/refiner.h"

#include <cstdint>
#include <memory>

namespace agpcs {

struct DqnOptions {
  // These are the paper's values.
  int hidden_units = 64;
  double learning_rate = 0.001;  ///< learning rate of Adam
  double first_epsilon = 1, last_epsilon = 0.1;
  std::int64_t epsilon_episodes = 1000;  ///< exploration falls linearly over this many
  // The paper leaves these open.
  std::int64_t episode_steps = 32;  ///< moves in an episode
  std::size_t choices = 48;         ///< moves to choose from at each step
  double discount = 0.95;
  int n_step = 3;          ///< rewards before the bootstrap
  double lambda = 0.1;     ///< lambda of Formula 2
  int replay = 20000;      ///< transitions remembered
  int batch = 64;          ///< transitions in a gradient step
  int target_every = 200;  ///< gradient steps between updates of the target network
  int scale_steps = 256;   ///< first steps, whose moves measure how large each feature is; 0: no
                           ///< such steps
  /// A new network at first values a move at minus this feature, and learns where that is wrong;
  /// -1: it begins at random.
  int guess = -1;
};

/// Returns Formula 2, R = Throughput - lambda x CommunicationCost, relative to where the search
/// began. Throughput is 1 / cost, so 1 at the start, and 0 for a broken solution. Communication
/// counts up to 1, a start's whole step: how much worse it is than that is of no use to learn.
double reward_of(const Outcome& outcome, double lambda);

/// Prints "episode,epsilon,loss,reward,best_cost" and one line for each episode.
std::string print_search_log(std::span<const EpisodeLog> log);

/// Makes the refiner in which the policy proposes and a local search finishes. Copies `policy`.
std::unique_ptr<Refiner> make_dqn_refiner(const QNetwork& policy);

/// Runs the search of that refiner. It logs rewards with `lambda`, of Formula 2, as episodes that
/// count from `first_episode`.
void search_with_policy(const QNetwork& policy, SearchPoint& point, SearchBudget& budget, Rng rng,
                        double lambda, std::int64_t first_episode);

}  // namespace agpcs
