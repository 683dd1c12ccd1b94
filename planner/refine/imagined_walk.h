// SPDX-License-Identifier: Apache-2.0
// Imagined walks: long walks on what a space's formula gives in place of the simulator, so that
// only their ends are evaluated. `dqn` spends a part of its budget on them; greedy and anneal do so
// when they are asked to.
#pragma once

#include "ir/base/rng.h"
#include "planner/refine/refiner.h"
#include "planner/refine/search_point.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace agpcs {

/// A climb begins where a walk ends if that costs no more than this many times the best.
inline constexpr double kWorthAClimb = 1.05;
/// The most walks of a round, and those that are walked side by side, whatever the number of
/// threads.
inline constexpr int kWalksOfARound = 32, kWalksAtATime = 4;
/// The evaluations of the first round; later rounds are longer.
inline constexpr std::int64_t kFirstRound = 250;
/// Returns the most evaluations of a climb in a round of `length`.
constexpr std::int64_t climb_of_round(std::int64_t length) {
  return std::max(length, kFirstRound) / 8 + 1;
}

/// Such a climb ends after this many evaluations in vain.
inline constexpr std::size_t kClimbPatience = 16;

enum class WalkEnd : std::uint8_t {
  kReached,    ///< at least one walk ended somewhere
  kNoFormula,  ///< the space has no formula: nothing was evaluated
  kNoMove,     ///< there is no move, or no budget: nothing was evaluated
};

/// Walks kWalksAtATime times by threshold accepting (Dueck and Scheuer, J. Comput. Phys. 90,
/// 1990) on what the space's formula gives, from starts drawn at random or, one time in four, from
/// the solution that was kept last. Threshold accepting is annealing without logarithms, so it is
/// the same on every machine. Afterwards it calls `at_end` for one walk after the other, where
/// `point` stands at its end, which is an evaluation that `at_end` spends, as long as that returns
/// true. `known`: the end was evaluated before.
WalkEnd walk_in_imagination(SearchPoint& point, const SearchBudget& budget, Rng& rng,
                            const std::function<bool(bool known)>& at_end);

}  // namespace agpcs
