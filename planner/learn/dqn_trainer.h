// SPDX-License-Identifier: Apache-2.0
// DqnTrainer: double Q-learning (van Hasselt, Guez and Silver, AAAI 2016) with replay memory,
// target network and n-step returns, in LibTorch. Q(s, a) scores the features of a move, so
// episodes of all problems train one network.
#pragma once

#include "planner/refine/dqn.h"
#include "planner/refine/q_network.h"
#include "planner/refine/refiner.h"
#include "planner/refine/search_point.h"

#include <cstdint>
#include <memory>

namespace agpcs {

class DqnTrainer {
 public:
  virtual ~DqnTrainer() = default;
  /// Runs one episode from where `point` stands: epsilon-greedy moves, with a gradient step after
  /// each once the replay memory holds a batch. Keeps (`SearchPoint::keep`) what is better than
  /// `best_cost`, and lowers `best_cost`. Spends one evaluation a step; ends early when the budget
  /// is used up.
  virtual EpisodeLog run_episode(SearchPoint& point, SearchBudget& budget, double& best_cost,
                                 Rng rng) = 0;
  virtual QNetwork network() const = 0;
};

/// Makes a trainer. `start`: the weights to go on from; null: random ones from `seed`. It uses one
/// thread, so that the same episodes give the same network.
std::unique_ptr<DqnTrainer> make_dqn_trainer(const DqnOptions& options, const QNetwork* start,
                                             std::uint64_t seed);

}  // namespace agpcs
