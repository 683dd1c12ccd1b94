// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/points/imagining_search.h"

#include "ir/base/at.h"

#include <cstddef>
#include <utility>

namespace agpcs {

void ImaginingSearch::begin(Strategy start, const RoughFit& fit, double off) {
  fit_ = fit;
  off_ = off;
  look_at(kAnyCost);
  start.buckets.clear();
  forget_guesses();
  start_ = place_of(worker(), std::move(start));
  stand_at(start_);
  keep();
}

void ImaginingSearch::evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    Guess& guess = guess_of(moves[i]);
    if (guess.counted || guess.cost > looks_at_) {
      outcomes[i] = {guess.cost > looks_at_ ? guess.cost : guess.with_memory, 0};
      continue;
    }
    StrategyPoint::evaluate(moves.subspan(i, 1), outcomes.subspan(i, 1));
    guess.cost = tried().front().place.score.step_seconds / reference_;
    guess.counted = guess.cost <= looks_at_;
    guess.with_memory = outcomes[i].cost;
  }
}

ImaginingSearch::Guess& ImaginingSearch::guess_of(const Move& move) {
  std::vector<Guess>& guesses = known().guesses;
  if (guesses.empty()) guesses.resize(known().moves.effects.size());
  return guesses[at(listed(move).number)];
}

Score ImaginingSearch::score_of(SearchWorker& worker, const Strategy& strategy,
                                const RoughStep& rough) {
  Score score;
  score.step_seconds = (fit_.factor(rough) + off_) * rough.seconds;
  if (score.step_seconds / reference_ > looks_at_ || worker.memory.most_lacking(strategy) <= 0) {
    return score;
  }
  score.lacking = worker.evaluator.lacking(strategy);
  return score;
}

}  // namespace agpcs
