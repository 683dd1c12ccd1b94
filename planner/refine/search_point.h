// SPDX-License-Identifier: Apache-2.0
// SearchPoint: where a search stands. Refiners see nothing else of a problem, so the same refiners
// improve strategies of a training step and any other placement.
#pragma once

#include "ir/base/rng.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace agpcs {

/// A change of the solution: one of those that a point listed last (`SearchPoint::moves`). Only the
/// point knows what it changes; all that others can tell is which moves are of one kind.
struct Move {
  int kind = 0;   ///< each space numbers its kinds
  int index = 0;  ///< in the list
  friend bool operator==(const Move&, const Move&) = default;
};

/// The worth of a solution, relative to where the search began.
struct Outcome {
  /// Smaller is better: 1 is as good as start 0. A solution that breaks a hard constraint costs at
  /// least kBroken, and more the more it breaks it.
  double cost = 0;
  double communication = 0;  ///< of Formula 2, in the same unit as `cost`
};
inline constexpr double kBroken = 1e6;
inline constexpr double kAnyCost = std::numeric_limits<double>::infinity();

/// The number of features by which a move's value is judged: numbers of order 1 that mean the same
/// in every problem.
inline constexpr int kFeatureCount = 48;
using Features = std::array<float, kFeatureCount>;

class SearchPoint {
 public:
  virtual ~SearchPoint() = default;

  /// Returns the outcome of the current solution.
  virtual Outcome outcome() const = 0;
  /// Returns up to `most` different moves from here, of all kinds, or all of them if there are
  /// fewer. None of them leaves the solution as it is. The order is unspecified. The functions
  /// below know the moves of the last list only, and only where it was made.
  virtual std::vector<Move> moves(std::size_t most, Rng& rng) = 0;
  /// Writes the features of `moves[i]` from here to `features[i]`. Evaluates nothing.
  virtual void describe(std::span<const Move> moves, std::span<Features> features) = 0;
  /// Writes the outcome to which `moves[i]` leads from here to `outcomes[i]`. Each one is an
  /// evaluation. They may run on several threads, which does not change the result.
  virtual void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) = 0;
  /// Goes to where `move` leads. It is not an evaluation if the move was among those evaluated
  /// last.
  virtual void take(const Move& move) = 0;

  /// Keeps the current solution in place of the one before.
  virtual void keep() = 0;
  /// Goes back to the solution that was kept last, or to start 0 if none was.
  virtual void go_back() = 0;

  /// Returns the number of solutions to begin from, the best first. A new point stands at start 0.
  virtual int starts() const { return 1; }
  virtual void go_to_start(int /*start*/) { go_back(); }

  /// Notes that a walk in imagination shall begin here. Returns its number: 0, 1, ... since `walk`
  /// was called; or -1 if the space has no formula that guesses outcomes.
  virtual int begin_walk() { return -1; }
  /// Calls `walk` for each walk that was begun, several at a time where there are threads, which
  /// does not change the result. `imagined` stands where the walk begins. It guesses outcomes by
  /// formula, in the same unit, so that nothing of it is an evaluation.
  virtual void walk(const std::function<void(SearchPoint& imagined, int walk)>& /*walk*/) {}
  /// From now on it does not matter how much more than `most` a move costs, if it does. To find out
  /// that much may take less time.
  virtual void look_at(double /*most*/) {}
  /// Goes to where a walk ended, which is an evaluation. Returns whether it was evaluated before.
  /// Needs: the walk was among the last ones.
  virtual bool go_to_end_of(int /*walk*/) { return false; }
};

}  // namespace agpcs
