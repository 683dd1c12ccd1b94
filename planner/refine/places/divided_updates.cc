// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/divided_updates.h"

#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "planner/refine/moves/moves.h"
#include "planner/refine/places/shorter_step.h"

#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr int kMostStages = 64;  // that are looked at

}  // namespace

void choose_divided_updates(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                            Score& score) {
  const int stages = static_cast<int>(strategy.stages.size());
  if (stages > kMostStages || !strategy.bodies.empty()) return;
  if (strategy.schedule == Schedule::kInterleaved) return;
  if (!may_divide(problem, StateLevel::kOptimizer)) return;
  StrategyMoves moves(problem);
  for (int stage = 0; stage < stages; ++stage) {
    if (strategy.stages[at(stage)].state_in_host) continue;
    const StateLevel now = strategy.stages[at(stage)].state;
    for (const StateLevel other : kStateLevels) {
      if (other == now || (other != StateLevel::kWhole && !may_divide(problem, other))) continue;
      std::optional<Strategy> changed =
          moves.apply(strategy, strategy, SetMemory{stage, std::nullopt, other});
      if (changed) take_if_shorter(evaluator, *std::move(changed), strategy, score);
    }
  }
}

}  // namespace agpcs
