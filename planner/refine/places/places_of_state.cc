// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/places_of_state.h"

#include "ir/base/at.h"
#include "ir/strategy/offload.h"
#include "planner/refine/moves/moves.h"
#include "planner/refine/places/shorter_step.h"
#include "planner/seed/fit_memory.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr int kMostRounds = 3;
constexpr int kMostStages = 64;  // that are looked at one by one

class PlacesOfState {
 public:
  PlacesOfState(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score)
      : problem_(problem), evaluator_(evaluator), moves_(problem), here_(strategy), score_(score) {}

  void run() {
    for (int round = 0; round < kMostRounds; ++round) {
      bool better = false;
      if (std::optional<Strategy> all = with_place(here_, kAllStages, true)) {
        better = try_with_fewer_micro_batches(*all);
        better = try_to_go(*all) || better;
        better = try_parted(*std::move(all)) || better;
      } else {
        better = try_with_fewer_micro_batches(here_);
      }
      const int stages = static_cast<int>(here_.stages.size());
      for (int stage = 0; stage < stages && stages > 1 && stages <= kMostStages; ++stage) {
        const bool in_host = here_.stages[at(stage)].state_in_host;
        std::optional<Strategy> other = with_place(here_, stage, !in_host);
        better = (other && try_to_go(*std::move(other))) || better;
      }
      if (!better) break;
    }
  }

 private:
  /// Returns the strategy with the state of `stage`, or of all, there, and nothing of it recomputed
  /// or divided; nothing if no state can go there or all is there.
  std::optional<Strategy> with_place(const Strategy& from, int stage, bool in_host) {
    const auto goes = [&](std::size_t s) {
      const bool chosen = stage == kAllStages || at(stage) == s;
      return chosen && from.stages[s].state_in_host != in_host &&
             (!in_host || why_not_offload(from, s, problem_.cluster).empty());
    };
    bool any = false;
    for (std::size_t s = 0; s < from.stages.size(); ++s) any = any || goes(s);
    if (!any) return std::nullopt;
    return moves_.apply(from, from,
                        SetMemory{stage, Recomputation{}, StateLevel::kWhole, {}, in_host});
  }

  bool try_with_fewer_micro_batches(const Strategy& from) {
    return try_fewer_micro_batches(problem_, moves_, from,
                                   [&](Strategy fewer) { return try_to_go(std::move(fewer)); });
  }

  bool try_parted(Strategy strategy) {
    if (!may_part_passes(problem_, strategy)) return false;
    strategy.schedule = Schedule::kZeroBubble;
    return evaluator_.lacking(strategy) <= 0 && try_to_go(std::move(strategy));
  }

  /// Takes the strategy, with help where it lacks memory, if that makes the step shorter. What is
  /// helped gets its gradients grouped anew: buckets of the search have their own order.
  bool try_to_go(Strategy strategy) {
    if (evaluator_.lacking(strategy) > 0 &&
        !fit_without_buckets(problem_, evaluator_, strategy, StateLevel::kParameters)) {
      return false;
    }
    return take_if_shorter(evaluator_, std::move(strategy), here_, score_);
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  StrategyMoves moves_;
  Strategy& here_;
  Score& score_;
};

}  // namespace

void choose_places_of_state(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                            Score& score) {
  if (!may_offload(problem) || !strategy.bodies.empty()) return;
  if (strategy.schedule == Schedule::kInterleaved) return;
  PlacesOfState(problem, evaluator, strategy, score).run();
}

}  // namespace agpcs
