// SPDX-License-Identifier: Apache-2.0
// The DQN of the AGPCS paper (sections 3.2 and 4): its settings, its log, and the refiner that
// searches with a trained network.
#pragma once

#include "planner/q_network.h"
#include "planner/refiner.h"

#include <cstdint>
#include <memory>

namespace agpcs {

struct DqnOptions {
  // The paper's values.
  int hidden_units = 64;
  double learning_rate = 0.001;  ///< of Adam
  double first_epsilon = 1, last_epsilon = 0.1;
  std::int64_t epsilon_episodes = 1000;  ///< exploration falls linearly over that many
  // What the paper leaves open.
  std::int64_t episode_steps = 32;  ///< moves in an episode
  std::size_t choices = 48;         ///< moves to choose from at each step
  double discount = 0.95;
  int n_step = 3;          ///< rewards before the bootstrap
  double lambda = 0.1;     ///< of Formula 2
  int replay = 20000;      ///< transitions remembered
  int batch = 64;          ///< transitions of a gradient step
  int target_every = 200;  ///< gradient steps between updates of the target network
  int scale_steps = 256;   ///< first steps, whose moves say how large each feature is; 0: ask none
  /// A new network values a move at minus this feature to begin with, and learns what that gets
  /// wrong; -1: at random.
  int guess = -1;
};

/// Formula 2, R = Throughput - lambda x CommunicationCost, relative to where the search began:
/// throughput is 1 / cost, so 1 at the start; of a broken solution it is 0. Communication counts up
/// to 1, a start's whole step: how much worse than that is of no use to learn.
double reward_of(const Outcome& outcome, double lambda);

/// "episode,epsilon,loss,reward,best_cost" and one line each.
std::string print_search_log(std::span<const EpisodeLog> log);

/// The policy proposes, a local search finishes. `policy` is copied.
std::unique_ptr<Refiner> make_dqn_refiner(const QNetwork& policy);

class DqnTrainer;
/// Trains for `episodes`, each from one start after another, then searches as `make_dqn_refiner`
/// does, with what was learned and what is left of the budget. `lambda`, of Formula 2, is the
/// trainer's: the search's rewards are logged with it, too. Refines once: the trainer goes on from
/// where it is.
std::unique_ptr<Refiner> make_learning_refiner(std::unique_ptr<DqnTrainer> trainer,
                                               std::int64_t episodes, double lambda);

}  // namespace agpcs
