// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places_of_activations.h"

#include "ir/base/at.h"
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
namespace {

constexpr int kRoundsOfAll = 2;
constexpr int kStagesOneByOne = 64;          // that are looked at one by one
constexpr std::ptrdiff_t kFewerNumbers = 3;  // numbers of micro-batches below the strategy's
constexpr int kSegments[] = {8, 32};         // that are tried

class PlacesOfActivations {
 public:
  PlacesOfActivations(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                      Score& score)
      : problem_(problem), evaluator_(evaluator), moves_(problem), here_(strategy), score_(score) {}

  void run() {
    const int stages = static_cast<int>(here_.stages.size());
    for (int round = 0; round < kRoundsOfAll; ++round) {
      bool better = keeps_less(kAllStages) && try_place(here_, kAllStages);
      better = try_with_fewer_micro_batches() || better;
      for (int stage = 0; stage < stages && stages > 1 && stages <= kStagesOneByOne; ++stage) {
        better = (keeps_less(stage) && try_place(here_, stage)) || better;
      }
      if (!better) break;
    }
  }

 private:
  /// Returns whether a stage, or one of all, does not keep everything whole on its devices.
  bool keeps_less(int stage) const {
    for (std::size_t s = 0; s < here_.stages.size(); ++s) {
      const StageSpec& spec = here_.stages[s];
      const bool less = spec.recompute || spec.state_in_host || spec.state != StateLevel::kWhole;
      if (less && (stage == kAllStages || at(stage) == s)) return true;
    }
    return false;
  }

  /// Tries what `stage`, or each, may have in hosts. Returns whether a step is shorter.
  bool try_place(const Strategy& from, int stage) {
    const Strategy before = from;  // which may be what changes here
    bool better = false;
    for (const int segments : kSegments) {
      for (const bool again : {false, true}) {
        std::optional<Strategy> placed = most_kept(before, stage, {segments, 0, again, true});
        better = (placed && try_to_go(*std::move(placed))) || better;
      }
    }
    return better;
  }

  /// Returns the strategy with most segments kept on devices; nothing if none fits.
  std::optional<Strategy> most_kept(const Strategy& from, int stage, Recomputation form) {
    std::optional<Strategy> best;
    const auto fits = [&](int kept) {
      form.kept = kept;
      std::optional<Strategy> placed = moves_.apply(from, from, SetMemory{stage, form});
      if (!placed || evaluator_.lacking(*placed) > 0) return false;
      best = std::move(placed);
      return true;
    };
    if (!fits(0)) return std::nullopt;
    int low = 0, high = form.segments;  // `low` fits
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return best;
  }

  /// Tries the next smaller numbers of micro-batches, as memory that is free may hold larger ones.
  bool try_with_fewer_micro_batches() {
    if (problem_.options.micro_batches > 0) return false;
    const std::vector<std::int64_t> numbers = micro_batch_numbers(problem_);
    const auto now = std::find(numbers.begin(), numbers.end(), here_.micro_batches);
    if (now == numbers.end()) return false;
    const Strategy from = here_;
    bool better = false;
    for (std::ptrdiff_t step = 1; step <= std::min(kFewerNumbers, now - numbers.begin()); ++step) {
      std::optional<Strategy> fewer = moves_.apply(from, from, SetMicroBatches{*(now - step)});
      better = (fewer && try_place(*fewer, kAllStages)) || better;
    }
    return better;
  }

  bool try_to_go(Strategy strategy) {
    const Score score = evaluator_.evaluate_up_to(strategy, most_seconds(score_));
    if (!score.whole || !score.fits() || !is_clearly_better(score, score_)) return false;
    here_ = std::move(strategy);
    score_ = score;
    return true;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  StrategyMoves moves_;
  Strategy& here_;
  Score& score_;
};

}  // namespace

void choose_places_of_activations(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                                  Score& score) {
  if (!may_offload_activations(problem) || !strategy.bodies.empty()) return;
  if (strategy.schedule == Schedule::kInterleaved) return;
  PlacesOfActivations(problem, evaluator, strategy, score).run();
}

}  // namespace agpcs
