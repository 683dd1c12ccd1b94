// SPDX-License-Identifier: Apache-2.0
// RefineWalk: what all baseline refiners have in common. It spends the budget for what it evaluates
// and keeps the best solution.
#pragma once

#include "ir/base/rng.h"
#include "planner/refine/refiner.h"
#include "planner/refine/search_point.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace agpcs {

class RefineWalk {
 public:
  /// Keeps the better of the solution where `point` stands and start 0, and goes there.
  RefineWalk(SearchPoint& point, SearchBudget& budget);

  double cost() const { return cost_; }  ///< of the current solution
  double best() const { return best_; }  ///< of all solutions so far
  bool done() const { return budget_.left() == 0; }
  int starts() const { return point_.starts(); }

  /// Returns what `SearchPoint::moves` returns, but no more moves than the budget can evaluate.
  std::vector<Move> moves(std::size_t most, Rng& rng);
  /// Returns one of `SearchPoint::moves`, each kind as likely as the others; empty if there is
  /// none.
  std::vector<Move> move_of_any_kind(Rng& rng);
  /// Evaluates moves; the result is valid until the next call. Needs: `moves` come from this
  /// class's `moves` and are not empty.
  std::span<const Outcome> evaluate(std::span<const Move> moves);
  /// Takes `move`, which leads to a solution of cost `cost`, and keeps the solution if it is the
  /// best so far. Needs: `move` was among those evaluated last.
  void take(const Move& move, double cost);
  void go_to_start(int start);
  void go_to_best();
  /// Runs a round of at most `length` evaluations, as `dqn` does. Calls `climb` where an imagined
  /// walk ends (imagined_walk.h), if that is worth it, with the number of evaluations that it may
  /// make. The round ends at the best solution. If the space has no formula, the round only goes
  /// there.
  void climb_from_imagined(std::int64_t length, Rng& rng,
                           const std::function<void(std::int64_t most)>& climb);

 private:
  void keep_if_best();

  SearchPoint& point_;
  SearchBudget& budget_;
  std::vector<Outcome> outcomes_;
  double cost_, best_;
};

/// Returns the index of the least cost, the first of equal ones.
std::size_t least_cost(std::span<const Outcome> outcomes);

/// These make the baselines with imagined walks. Once they have looked at the starts, they spend
/// half of their evaluations on the walks. They show what `dqn` owes to the walks (refiner_bench).
std::unique_ptr<Refiner> make_greedy_refiner_with_walks();
std::unique_ptr<Refiner> make_anneal_refiner_with_walks();

}  // namespace agpcs
