// SPDX-License-Identifier: Apache-2.0
// RefineWalk: what all baseline refiners do alike. Spends what is evaluated and keeps the best.
#pragma once

#include "ir/rng.h"
#include "planner/refiner.h"
#include "planner/search_point.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace agpcs {

class RefineWalk {
 public:
  /// Keeps the solution where `point` stands, or start 0 where that is better.
  RefineWalk(SearchPoint& point, SearchBudget& budget);

  double cost() const { return cost_; }  ///< where it stands
  double best() const { return best_; }  ///< of all solutions where it stood
  bool done() const { return budget_.left() == 0; }
  int starts() const { return point_.starts(); }

  /// As `SearchPoint::moves`, none more than the budget can evaluate.
  std::vector<Move> moves(std::size_t most, Rng& rng);
  /// One of `SearchPoint::moves`, each kind as likely as the others. Empty: there is none.
  std::vector<Move> move_of_any_kind(Rng& rng);
  /// Valid until the next call. Needs: `moves` of this class's `moves`, not empty.
  std::span<const Outcome> evaluate(std::span<const Move> moves);
  /// Goes where `move` leads, which costs `cost`; keeps the solution if it is the best so far.
  /// Needs: `move` was evaluated last.
  void take(const Move& move, double cost);
  void go_to_start(int start);
  void go_to_best();
  /// A round of `length` evaluations at most, as `dqn` has it: `climb`, which is told how many
  /// evaluations it may make, is called where a walk in imagination ends (imagined_walk.h), if
  /// that is worth it. It ends at the best; where the space has no formula it only goes there.
  void climb_from_imagined(std::int64_t length, Rng& rng,
                           const std::function<void(std::int64_t most)>& climb);

 private:
  void keep_if_best();

  SearchPoint& point_;
  SearchBudget& budget_;
  std::vector<Outcome> outcomes_;
  double cost_, best_;
};

/// The first of the least.
std::size_t least_cost(std::span<const Outcome> outcomes);

/// The baselines with walks in imagination, on which they spend half of their evaluations once they
/// have looked at a start: to see what `dqn` owes to those walks (refiner_bench).
std::unique_ptr<Refiner> make_greedy_refiner_with_walks();
std::unique_ptr<Refiner> make_anneal_refiner_with_walks();

}  // namespace agpcs
