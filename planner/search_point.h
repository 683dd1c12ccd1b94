// SPDX-License-Identifier: Apache-2.0
// SearchPoint: where a search stands. Refiners see nothing else of a problem, so the same ones
// improve strategies of a training step and any other placement that can be moved about.
#pragma once

#include "ir/rng.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// A change of the solution; what the numbers say is its space's.
struct Move {
  int kind = 0;
  int a = 0, b = 0, c = 0, d = 0;
  friend bool operator==(const Move&, const Move&) = default;
};

/// What a solution is worth, relative to where the search began.
struct Outcome {
  /// Smaller is better: 1 is as good as start 0. A solution that breaks a hard constraint costs at
  /// least kBroken, and more the more it breaks it.
  double cost = 0;
  double communication = 0;  ///< of Formula 2, in the same unit as `cost`
};
inline constexpr double kBroken = 1e6;

/// What the value of a move is judged by: numbers of order 1 that mean the same in every problem.
inline constexpr int kFeatureCount = 48;
using Features = std::array<float, kFeatureCount>;

class SearchPoint {
 public:
  virtual ~SearchPoint() = default;

  /// Of the solution where it stands.
  virtual Outcome outcome() const = 0;
  /// At most `most` different moves from here, of all kinds, none of which leaves the solution as
  /// it is; all that there are when they are no more. In an order that says nothing.
  virtual std::vector<Move> moves(std::size_t most, Rng& rng) = 0;
  /// `features[i]` of `moves[i]` from here. Does not evaluate.
  virtual void describe(std::span<const Move> moves, std::span<Features> features) = 0;
  /// `outcomes[i]` is that of the solution to which `moves[i]` leads from here. Each is an
  /// evaluation; they may run on several threads, which changes nothing of the result.
  virtual void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) = 0;
  /// Goes there. Not an evaluation where the move was among those evaluated last.
  virtual void take(const Move& move) = 0;

  /// Remembers the solution where it stands, in place of the one before.
  virtual void keep() = 0;
  /// Goes back to the solution that was kept last; to start 0 when none was.
  virtual void go_back() = 0;

  /// Solutions to begin from, the best first. It stands at start 0 to begin with.
  virtual int starts() const { return 1; }
  virtual void go_to_start(int /*start*/) { go_back(); }

  /// A point of its own that now stands here, too, and guesses outcomes by formula, in the same
  /// unit, so that nothing of it is an evaluation; null where a space has no formula. The same one
  /// at each call; this point owns it.
  virtual SearchPoint* imagine() { return nullptr; }
  /// For an imagined point: of a solution that costs more than `most` no constraint need be looked
  /// at, which takes longer than the formula.
  virtual void look_at(double /*most*/) {}
  /// Goes to where the imagined point stands: an evaluation. Needs: `imagine` gave one.
  virtual void go_to_imagined() {}
};

}  // namespace agpcs
