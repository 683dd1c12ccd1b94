// SPDX-License-Identifier: Apache-2.0
// for_each_help: what makes a strategy fit that lacks memory.
#pragma once

#include "planner/seed/fit_memory.h"

#include <agpcs/types.h>

#include <algorithm>
#include <utility>

namespace agpcs {

/// Calls `use(Strategy)` with what each way to help makes of `strategy`, as far as that fits then:
/// `fit_memory`, parted backward passes, each level of divided state, and for pipelines that
/// nothing else helps, fewer micro-batches in flight. Some may be equal. Returns whether any
/// helped. Needs: `strategy` lacks memory, and has no buckets; `evaluator` is the problem's.  Cost:
/// that of these functions.
template <typename Use>
bool for_each_help(const Problem& problem, Evaluator& evaluator, const Strategy& strategy,
                   Use use) {
  const bool pipeline = strategy.stages.size() > 1;
  const bool divides = std::ranges::any_of(
      strategy.stages, [](const StageSpec& spec) { return spec.devices.size() > 1; });
  bool any = false;
  const auto help = [&](auto fit) {
    Strategy helped = strategy;
    if (!fit(helped)) return;
    any = true;
    use(std::move(helped));
  };
  help([&](Strategy& helped) {
    return fit_memory(problem, evaluator, helped, StateLevel::kParameters);
  });
  if (pipeline && any) {  // otherwise that was tried
    help([&](Strategy& helped) { return fit_with_parted_passes(problem, evaluator, helped); });
  }
  for (const StateLevel level : kDividingLevels) {
    if (!divides) break;
    help([&](Strategy& helped) {
      return fit_memory_by(problem, evaluator, helped, level, SampleMoves::kYes);
    });
  }
  if (pipeline && !any) {
    help([&](Strategy& helped) { return fit_with_fewer_in_flight(problem, evaluator, helped); });
  }
  return any;
}

}  // namespace agpcs
