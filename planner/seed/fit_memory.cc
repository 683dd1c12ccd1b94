// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/fit_memory.h"

#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "ir/base/largest_that_holds.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/teams.h"
#include "planner/problem/shares.h"
#include "planner/seed/memory/stage_fitter.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr StateLevel kUndivided[] = {StateLevel::kWhole};

/// Returns the strategy with help for each stage that lacks memory, which may divide what one of
/// `levels` says; nothing if a stage cannot be helped.
std::optional<Strategy> helped(const Problem& problem, Evaluator& evaluator,
                               const Strategy& strategy, std::span<const StateLevel> levels,
                               SampleMoves move, bool may_offload) {
  const int stages = static_cast<int>(strategy.stages.size());
  std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  Strategy fitted = strategy;
  for (int stage = 0; stage < stages; ++stage) {
    if (strategy.stages[at(stage)].has_teams()) continue;  // which nothing here helps
    if (!lacks(problem, evaluator, strategy, stage)) continue;
    const bool alone = strategy.stages[at(stage)].devices.size() < 2;
    StageFitter fitter(problem, evaluator, strategy, stage, std::move(ops[at(stage)]),
                       alone ? kUndivided : levels, move);
    std::optional<StageSpec> spec = fitter.run(may_offload);
    if (!spec) return std::nullopt;
    fitted.stages[at(stage)] = *std::move(spec);
  }
  return fitted;
}

bool uses_hosts(const Strategy& strategy) {
  return std::any_of(strategy.stages.begin(), strategy.stages.end(), [](const StageSpec& spec) {
    return spec.state_in_host || spec.recompute.in_host;
  });
}

bool divides(const Strategy& strategy) {
  return std::any_of(strategy.stages.begin(), strategy.stages.end(),
                     [](const StageSpec& spec) { return spec.state != StateLevel::kWhole; });
}

/// Returns the strategy with whole backward passes, which may recompute and divide gradients.
Strategy with_whole_passes(Strategy strategy) {
  if (strategy.schedule == Schedule::kZeroBubble) strategy.schedule = Schedule::k1F1B;
  return strategy;
}

}  // namespace

bool fit_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                StateLevel most_divided, SampleMoves move, Offloads offloads) {
  if (has_unlike_teams(strategy))
    return evaluator.lacking(strategy) <= 0;  // nothing helps them yet
  const Strategy whole = with_whole_passes(strategy);
  bool divided = false, offloaded = false;
  bool offload = offloads == Offloads::kYes && may_use_hosts(problem);
  const auto fits_with = [&](std::span<const StateLevel> levels) {
    std::optional<Strategy> fitted = helped(problem, evaluator, whole, levels, move, offload);
    divided = fitted && divides(*fitted);
    offloaded = offloaded || (fitted && uses_hosts(*fitted));
    // A stage left with a single device has other programs, so the whole strategy is judged again.
    if (!fitted || evaluator.lacking(*fitted) > 0) return false;
    strategy = *std::move(fitted);
    return true;
  };
  const StateLevel whole_or_most[] = {StateLevel::kWhole, most_divided};
  const bool more = most_divided >= StateLevel::kGradients;
  const auto fits = [&] {
    if (fits_with(std::span(kStateLevels).first(static_cast<std::size_t>(most_divided) + 1)))
      return true;
    if (!divided) return false;
    // What looks fastest with divided state may not fit after all; what fits without it still does,
    // and so may what divides more.
    return fits_with(kUndivided) ||
           (more && may_divide(problem, most_divided) && fits_with(whole_or_most));
  };
  if (fits()) return true;
  // So may what has nothing in the memory of hosts, which all of a host's devices fill.
  offload = false;
  return (offloaded && fits()) || fit_with_parted_passes(problem, evaluator, strategy);
}

bool fit_memory_by(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                   StateLevel level, SampleMoves move) {
  if (has_unlike_teams(strategy) || !may_divide(problem, level)) return false;
  std::optional<Strategy> fitted = helped(problem, evaluator, with_whole_passes(strategy),
                                          {&level, 1}, move, may_use_hosts(problem));
  if (!fitted || evaluator.lacking(*fitted) > 0) return false;
  strategy = *std::move(fitted);
  return true;
}

bool fit_without_buckets(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                         StateLevel most_divided) {
  strategy.buckets.clear();
  strategy.flows.clear();
  return fit_memory(problem, evaluator, strategy, most_divided, SampleMoves::kYes, Offloads::kNo);
}

void need_least_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy) {
  if (has_unlike_teams(strategy)) return;
  strategy = with_whole_passes(std::move(strategy));
  const int stages = static_cast<int>(strategy.stages.size());
  std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  for (int stage = 0; stage < stages; ++stage) {
    if (strategy.stages[at(stage)].has_teams()) continue;
    if (!lacks(problem, evaluator, strategy, stage)) continue;
    strategy.stages[at(stage)].state_in_host =
        may_offload(problem) && why_not_offload(strategy, at(stage), problem.cluster).empty();
    StageFitter fitter(problem, evaluator, strategy, stage, std::move(ops[at(stage)]), {});
    if (std::optional<StageSpec> less = fitter.with_more_memory()) {
      strategy.stages[at(stage)].recompute = less->recompute;
      set_group(strategy.stages[at(stage)], *std::move(less));
    }
  }
}

void keep_more(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score) {
  if (!problem.options.choose_segments || has_unlike_teams(strategy)) return;
  const int stages = static_cast<int>(strategy.stages.size());
  std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  Strategy more = strategy;
  for (int stage = 0; stage < stages; ++stage) {
    if (!strategy.stages[at(stage)].recompute) continue;
    StageFitter fitter(problem, evaluator, more, stage, std::move(ops[at(stage)]), {});
    if (const auto kept = fitter.keeping_more()) more.stages[at(stage)].recompute = *kept;
  }
  if (more == strategy) return;
  const Score own = evaluator.evaluate_up_to(more, score.step_seconds);
  if (!own.fits() || own.step_seconds >= score.step_seconds) return;
  strategy = std::move(more);
  score = own;
}

bool may_part_passes(const Problem& problem, const Strategy& strategy) {
  return problem.options.part_backward && strategy.stages.size() > 1 &&
         strategy.micro_batches > 1 && may_part_backward(strategy);
}

namespace {

/// Returns the pipeline with 1F1B with parted backward passes, if it may have them.
std::optional<Strategy> parted(const Problem& problem, const Strategy& strategy) {
  if (strategy.schedule != Schedule::k1F1B || !may_part_passes(problem, strategy)) {
    return std::nullopt;
  }
  Strategy changed = strategy;
  changed.schedule = Schedule::kZeroBubble;
  return changed;
}

}  // namespace

void part_backward(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score) {
  std::optional<Strategy> changed = parted(problem, strategy);
  if (!changed) return;
  const Score own = evaluator.evaluate(*changed);
  if (!own.fits() || own.step_seconds >= score.step_seconds) return;
  strategy = *std::move(changed);
  score = own;
}

bool fit_with_parted_passes(const Problem& problem, Evaluator& evaluator, Strategy& strategy) {
  std::optional<Strategy> changed = parted(problem, strategy);
  if (!changed || evaluator.lacking(*changed) > 0) return false;
  strategy = *std::move(changed);
  return true;
}

bool fit_with_fewer_in_flight(const Problem& problem, Evaluator& evaluator, Strategy& strategy) {
  const bool may = problem.options.choose_in_flight && strategy.stages.size() > 1;
  const std::vector<std::int64_t> now = in_flight_by_stage(strategy);
  std::optional<Strategy> best;
  const auto fits_with = [&](std::int64_t most) {
    Strategy fewer = strategy;
    fewer.schedule = Schedule::k1F1B;
    for (std::size_t s = 0; s < now.size(); ++s) fewer.stages[s].in_flight = std::min(most, now[s]);
    fit_in_flight(fewer);
    if (evaluator.lacking(fewer) > 0 && !fit_memory(problem, evaluator, fewer)) return false;
    best = std::move(fewer);
    return true;
  };
  const std::int64_t most = *std::max_element(now.begin(), now.end());
  if (!may || most < 2 || !fits_with(1)) return false;
  largest_that_holds(std::int64_t{1}, most, fits_with);  // the last that fits is in `best`
  strategy = *std::move(best);
  return true;
}

}  // namespace agpcs
