// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/places_of_activations.h"

#include "ir/base/at.h"
#include "ir/base/largest_that_holds.h"
#include "planner/refine/moves/moves.h"
#include "planner/refine/places/shorter_step.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr int kRoundsOfAll = 2;
constexpr int kStagesOneByOne = 64;   // that are looked at one by one
constexpr int kSegments[] = {8, 32};  // that are tried

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
        better =
            (placed && take_if_shorter(evaluator_, *std::move(placed), here_, score_)) || better;
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
    largest_that_holds(0, form.segments, fits);  // the last that fits is in `best`
    return best;
  }

  bool try_with_fewer_micro_batches() {
    const Strategy from = here_;
    return try_fewer_micro_batches(problem_, moves_, from, [&](const Strategy& fewer) {
      return try_place(fewer, kAllStages);
    });
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
