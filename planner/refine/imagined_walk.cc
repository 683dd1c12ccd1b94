// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/imagined_walk.h"

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

constexpr std::int64_t kSteps = 2000;
constexpr std::size_t kSome = 8;          // moves listed at a time
constexpr double kFirstThreshold = 0.06;  // the first threshold, relative to the cost
constexpr std::uint64_t kFromHere = 4;    // one in so many walks begins where the point stands

/// Walks the imagined point. Returns false if there is no move.
bool walk(SearchPoint& imagined, const SearchBudget& budget, Rng& rng) {
  Outcome outcome;
  for (std::int64_t step = 0; step < kSteps && budget.left() > 0;) {
    const std::vector<Move> moves = imagined.moves(kSome, rng);
    if (moves.empty()) return false;
    for (const Move& move : moves) {
      if (++step > kSteps) break;
      const double left = 1 - static_cast<double>(step) / static_cast<double>(kSteps);
      const double most =
          imagined.outcome().cost * (1 + kFirstThreshold * left * left * rng.uniform());
      imagined.look_at(most);
      imagined.evaluate({&move, 1}, {&outcome, 1});
      if (outcome.cost > most) continue;
      imagined.take(move);
      break;
    }
  }
  return true;
}

}  // namespace

WalkEnd walk_in_imagination(SearchPoint& point, const SearchBudget& budget, Rng& rng,
                            const std::function<bool(bool known)>& at_end) {
  std::vector<Rng> rngs;
  for (int i = 0; i < kWalksAtATime; ++i) {  // all of them, so that a larger budget begins alike
    if (rng.below(kFromHere) > 0) {
      point.go_to_start(static_cast<int>(rng.below(static_cast<std::uint64_t>(point.starts()))));
    } else {
      point.go_back();
    }
    if (point.begin_walk() < 0) return WalkEnd::kNoFormula;
    rngs.emplace_back(rng.next());
  }
  std::vector<char> walked(rngs.size());
  point.walk([&](SearchPoint& imagined, int number) {
    const auto i = static_cast<std::size_t>(number);
    walked[i] = walk(imagined, budget, rngs[i]) ? 1 : 0;
  });
  WalkEnd end = WalkEnd::kNoMove;
  for (int i = 0; i < kWalksAtATime && budget.left() > 0; ++i) {
    if (walked[static_cast<std::size_t>(i)] == 0) continue;
    end = WalkEnd::kReached;
    const bool known = point.go_to_end_of(i);
    if (!at_end(known)) break;
  }
  return end;
}

}  // namespace agpcs
