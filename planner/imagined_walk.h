// SPDX-License-Identifier: Apache-2.0
// Walks in imagination: long ones, on what a space's formula says in place of the simulator, so
// that only their ends are evaluated. What `dqn` does with a part of its budget, and greedy and
// anneal where they are asked to.
#pragma once

#include "ir/rng.h"
#include "planner/refiner.h"
#include "planner/search_point.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace agpcs {

/// A climb begins where a walk ends if that costs no more than so many times the best.
inline constexpr double kWorthAClimb = 1.05;
/// Walks of a round, at most.
inline constexpr int kWalksOfARound = 32;
/// Evaluations of the first round; later ones are longer.
inline constexpr std::int64_t kFirstRound = 250;
/// Evaluations of a climb in a round of `length`, at most.
constexpr std::int64_t climb_of_round(std::int64_t length) {
  return std::max(length, kFirstRound) / 8 + 1;
}

/// Evaluations in vain after which such a climb ends.
inline constexpr std::size_t kClimbPatience = 16;

enum class WalkEnd : std::uint8_t {
  kReached,    ///< one evaluation was made
  kNoFormula,  ///< the space has none: nothing was evaluated
  kNone,       ///< there is no move, or no budget: nothing was evaluated
};

/// Threshold accepting (Dueck and Scheuer, J. Comput. Phys. 90, 1990) on what the space's formula
/// says, from a start drawn at random or, one time in four, from where `point` stands. It is
/// annealing without logarithms: the same on every machine. `point` then stands where the walk
/// ended. `best`: the least cost so far.
WalkEnd walk_in_imagination(SearchPoint& point, SearchBudget& budget, double best, Rng& rng);

}  // namespace agpcs
