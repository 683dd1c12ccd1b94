// SPDX-License-Identifier: Apache-2.0
// What passes after the search share: they take a strategy whose step is shorter.
#pragma once

#include "planner/problem/micro_batches.h"
#include "planner/refine/moves/moves.h"
#include "planner/seed/pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {

/// Puts `strategy` in the place of `here` if it fits and its step is clearly shorter. Returns
/// whether it did.
inline bool take_if_shorter(Evaluator& evaluator, Strategy strategy, Strategy& here, Score& score) {
  const Score other = evaluator.evaluate_up_to(strategy, most_seconds(score));
  if (!other.whole || !other.fits() || !is_clearly_better(other, score)) return false;
  here = std::move(strategy);
  score = other;
  return true;
}

/// Calls `take(Strategy)` for `from` with each of the three next smaller numbers of micro-batches,
/// the largest first, as memory that is free may hold larger ones. Returns whether one was taken.
template <typename Take>
bool try_fewer_micro_batches(const Problem& problem, StrategyMoves& moves, const Strategy& from,
                             Take take) {
  constexpr std::ptrdiff_t kFewer = 3;
  if (problem.options.micro_batches > 0) return false;
  const std::vector<std::int64_t> numbers = micro_batch_numbers(problem);
  const auto now = std::find(numbers.begin(), numbers.end(), from.micro_batches);
  if (now == numbers.end()) return false;
  bool better = false;
  for (std::ptrdiff_t step = 1; step <= std::min(kFewer, now - numbers.begin()); ++step) {
    std::optional<Strategy> fewer = moves.apply(from, from, SetMicroBatches{*(now - step)});
    better = (fewer && take(*std::move(fewer))) || better;
  }
  return better;
}

}  // namespace agpcs
