// SPDX-License-Identifier: Apache-2.0
// DqnTrainer: double Q-learning (van Hasselt, Guez and Silver, AAAI 2016) with replay memory,
// target network and n-step returns, in LibTorch. Q(s, a) scores the features of a move, so
// episodes of all problems train one network.
#pragma once

#include "planner/dqn.h"
#include "planner/q_network.h"
#include "planner/refiner.h"
#include "planner/search_point.h"

#include <cstdint>
#include <memory>

namespace agpcs {

class DqnTrainer {
 public:
  virtual ~DqnTrainer() = default;
  /// One episode from where `point` stands: epsilon-greedy moves, a gradient step after each once
  /// the replay memory holds a batch. Keeps (`SearchPoint::keep`) what is better than `best_cost`,
  /// and lowers it. Spends one evaluation a step; ends early with the budget.
  virtual EpisodeLog run_episode(SearchPoint& point, SearchBudget& budget, double& best_cost,
                                 Rng rng) = 0;
  virtual QNetwork network() const = 0;
};

/// `start`: weights to go on from; null: random ones from `seed`. One thread, so that the same
/// episodes give the same network.
std::unique_ptr<DqnTrainer> make_dqn_trainer(const DqnOptions& options, const QNetwork* start,
                                             std::uint64_t seed);

}  // namespace agpcs
