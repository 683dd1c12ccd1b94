// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/walk.h"

#include "planner/refine/imagined_walk.h"

#include <algorithm>
#include <cstdint>

namespace agpcs {
namespace {

constexpr std::size_t kDrawn = 16;  // moves that are listed to choose one of any kind

}  // namespace

RefineWalk::RefineWalk(SearchPoint& point, SearchBudget& budget)
    : point_(point), budget_(budget), cost_(point.outcome().cost), best_(cost_) {
  point_.keep();
  go_to_start(0);
  go_to_best();
}

std::vector<Move> RefineWalk::moves(std::size_t most, Rng& rng) {
  const auto left = static_cast<std::size_t>(std::max<std::int64_t>(0, budget_.left()));
  if (left == 0) return {};
  return point_.moves(std::min(most, left), rng);
}

std::vector<Move> RefineWalk::move_of_any_kind(Rng& rng) {
  if (done()) return {};
  std::vector<Move> drawn = point_.moves(kDrawn, rng);
  if (drawn.empty()) return {};
  std::vector<int> kinds;
  for (const Move& move : drawn) kinds.push_back(move.kind);
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  const int kind = kinds[rng.below(kinds.size())];
  std::erase_if(drawn, [&](const Move& move) { return move.kind != kind; });
  return {drawn[rng.below(drawn.size())]};
}

std::span<const Outcome> RefineWalk::evaluate(std::span<const Move> moves) {
  outcomes_.assign(moves.size(), {});
  point_.evaluate(moves, outcomes_);
  budget_.spend(static_cast<std::int64_t>(moves.size()),
                std::min(best_, outcomes_[least_cost(outcomes_)].cost));
  return outcomes_;
}

void RefineWalk::take(const Move& move, double cost) {
  point_.take(move);
  cost_ = cost;
  keep_if_best();
}

void RefineWalk::go_to_start(int start) {
  point_.go_to_start(start);
  cost_ = point_.outcome().cost;
  keep_if_best();
}

void RefineWalk::go_to_best() {
  point_.go_back();
  cost_ = best_;
}

void RefineWalk::climb_from_imagined(std::int64_t length, Rng& rng,
                                     const std::function<void(std::int64_t most)>& climb) {
  const std::int64_t end = budget_.made() + length;
  int walks = 0;
  const auto go_on = [&] { return walks < kWalksOfARound && !done() && budget_.made() < end; };
  const auto at_end = [&](bool /*known*/) {
    ++walks;
    cost_ = point_.outcome().cost;
    budget_.spend(1, std::min(best_, cost_));
    keep_if_best();
    if (cost_ <= kWorthAClimb * best_)
      climb(std::min(climb_of_round(length), end - budget_.made()));
    return go_on();
  };
  while (go_on()) {
    if (walk_in_imagination(point_, budget_, rng, at_end) != WalkEnd::kReached) break;
  }
  go_to_best();
}

void RefineWalk::keep_if_best() {
  if (cost_ >= best_) return;
  best_ = cost_;
  point_.keep();
}

std::size_t least_cost(std::span<const Outcome> outcomes) {
  std::size_t least = 0;
  for (std::size_t i = 1; i < outcomes.size(); ++i) {
    if (outcomes[i].cost < outcomes[least].cost) least = i;
  }
  return least;
}

}  // namespace agpcs
