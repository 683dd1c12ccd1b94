// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/neighbours.h"

#include "ir/base/at.h"
#include "planner/problem/micro_batches.h"
#include "planner/refine/moves/moves.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/pool.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// The nearest neighbours that change one setting more: so many, with steps up to so many times as
/// long as that of the place here.
constexpr std::size_t kNearest = 24;
constexpr double kNear = 1.6;
constexpr int kMostPlaces = 16;

class Neighbours {
 public:
  Neighbours(const Problem& problem, Evaluator& evaluator, std::int64_t most, Strategy& strategy,
             Score& score)
      : problem_(problem),
        evaluator_(evaluator),
        moves_(problem),
        left_(most),
        here_(strategy),
        score_(score) {}

  /// Returns how many evaluations it made.
  std::int64_t run() {
    while (left_ > 0 && static_cast<int>(here_.stages.size()) <= kMostPlaces && climb()) {
    }
    return made_;
  }

 private:
  struct Neighbour {
    Strategy strategy;
    Score score;
  };

  /// Goes to the best neighbour. Returns whether it is better.
  bool climb() {
    near_.clear();
    seen_ = {here_};
    best_.reset();
    const Strategy grouped = evaluator_.grouped(here_);
    const MovesFrom from = moves_.all(here_, grouped);
    std::apply(
        [&](const auto&... lists) {
          (...,
           for_each(lists, [&](const auto& move) { look_at(moves_.apply(here_, grouped, move)); }));
        },
        from.lists);
    for_each_setting(here_,
                     [&](const StrategyMove& move) { look_at(moves_.apply(here_, here_, move)); });
    for (const Neighbour& neighbour : nearest()) {
      for_each_setting(neighbour.strategy, [&](const StrategyMove& move) {
        look_at(moves_.apply(neighbour.strategy, neighbour.strategy, move));
      });
    }
    if (!best_) return false;
    here_ = std::move(best_->strategy);
    score_ = best_->score;
    return true;
  }

  /// Returns the nearest neighbours, of equal ones the first.
  std::vector<Neighbour> nearest() {
    std::stable_sort(near_.begin(), near_.end(), [](const Neighbour& a, const Neighbour& b) {
      return is_better(a.score, b.score);
    });
    std::vector<Neighbour> nearest;
    for (const Neighbour& neighbour : near_) {
      if (nearest.size() == kNearest) break;
      const bool known = !nearest.empty() &&
                         nearest.back().score.step_seconds == neighbour.score.step_seconds &&
                         nearest.back().score.lacking == neighbour.score.lacking;
      if (!known) nearest.push_back(neighbour);
    }
    return nearest;
  }

  template <typename List, typename F>
  static void for_each(const List& list, F f) {
    for (const auto& item : list) f(item);
  }

  void look_at(std::optional<Strategy> changed) {
    if (!changed || left_ <= 0) return;
    if (evaluator_.lacking(*changed) <= 0) {
      judge(*std::move(changed));
      return;
    }
    changed->buckets.clear();
    changed->flows.clear();
    bool helped = help(*changed, [&](Strategy& strategy) {
      return fit_memory(problem_, evaluator_, strategy, StateLevel::kParameters);
    });
    helped = help(*changed,
                  [&](Strategy& strategy) {
                    return fit_with_parted_passes(problem_, evaluator_, strategy);
                  }) ||
             helped;
    for (const StateLevel level : kDividingLevels) {
      if (!may_divide(problem_, level)) continue;
      helped =
          help(*changed,
               [&](Strategy& strategy) {
                 return fit_memory_by(problem_, evaluator_, strategy, level, SampleMoves::kYes);
               }) ||
          helped;
    }
    helped = helped || help(*changed, [&](Strategy& strategy) {
               return fit_with_fewer_in_flight(problem_, evaluator_, strategy);
             });
    if (!helped && !score_.fits()) judge(*std::move(changed));
  }

  /// Judges what `fit` makes of a strategy that lacks memory. Returns whether it made it fit.
  template <typename F>
  bool help(const Strategy& lacking, F fit) {
    if (left_ <= 0) return false;
    --left_;
    Strategy helped = lacking;
    if (!fit(helped)) return false;
    judge(std::move(helped));
    return true;
  }

  void judge(Strategy changed) {
    if (left_ <= 0 || std::find(seen_.begin(), seen_.end(), changed) != seen_.end()) return;
    seen_.push_back(changed);
    --left_;
    ++made_;
    const Score score = evaluator_.evaluate(changed);
    const Score& best = best_ ? best_->score : score_;
    if (is_clearly_better(score, best)) best_ = Neighbour{changed, score};
    if (score.fits() != score_.fits() && !score.fits()) return;
    if (score.fits() && score_.fits() && score.step_seconds > kNear * score_.step_seconds) return;
    near_.push_back({std::move(changed), score});
  }

  /// Calls `visit(StrategyMove)` for each other setting of `strategy`.
  template <typename F>
  void for_each_setting(const Strategy& strategy, F visit) {
    const int stages = static_cast<int>(strategy.stages.size());
    const bool pipeline = stages > 1 && strategy.micro_batches > 1;
    for (const Schedule schedule : {Schedule::k1F1B, Schedule::kGPipe, Schedule::kZeroBubble}) {
      const bool parts = schedule == Schedule::kZeroBubble;
      if (!pipeline || schedule == strategy.schedule) continue;
      if (parts && !(problem_.options.part_backward && may_part_backward(strategy))) continue;
      visit(SetSchedule{schedule});
    }
    const std::vector<std::int64_t> numbers = micro_batch_numbers(problem_);
    const auto now = std::find(numbers.begin(), numbers.end(), strategy.micro_batches);
    if (now != numbers.end() && now != numbers.begin()) visit(SetMicroBatches{*(now - 1)});
    if (now != numbers.end() && now + 1 != numbers.end()) visit(SetMicroBatches{*(now + 1)});
    for (int s = 0; s < stages; ++s) {
      const StageSpec& spec = strategy.stages[at(s)];
      if (s + 1 < stages) {
        visit(ShiftCut{s, agpcs::Neighbour::kNext, ShiftCut::Amount::kOneBlock});
        visit(ShiftCut{s, agpcs::Neighbour::kPrevious, ShiftCut::Amount::kOneBlock});
      }
      if (pipeline && problem_.options.choose_in_flight && strategy.schedule != Schedule::kGPipe) {
        for (const InFlight number : {InFlight::kOneMore, InFlight::kOneFewer}) {
          visit(SetMemory{s, std::nullopt, std::nullopt, number});
        }
      }
      visit_memory(s, spec, visit);
    }
  }

  template <typename F>
  void visit_memory(int s, const StageSpec& spec, F visit) {
    for (const StateLevel level : {StateLevel::kWhole, StateLevel::kOptimizer,
                                   StateLevel::kGradients, StateLevel::kParameters}) {
      if (spec.devices.size() < 2 || level == spec.state) continue;
      if (level != StateLevel::kWhole && !may_divide(problem_, level)) continue;
      visit(SetMemory{s, std::nullopt, level});
    }
    const bool segments = problem_.options.choose_segments;
    std::vector<Recomputation> others = {{}, kWholeStage};
    if (segments) others.insert(others.end(), {{2, 1}, {4, 2}, {8, 4}});
    if (may_offload_activations(problem_)) {
      others.insert(others.end(), {{1, 0, false, true}, {4, 2, false, true}, {8, 1, false, true}});
    }
    for (const Recomputation& recompute : others) {
      if (recompute != spec.recompute) visit(SetMemory{s, recompute});
    }
    if (may_offload(problem_)) {
      visit(SetMemory{s, std::nullopt, std::nullopt, std::nullopt, !spec.state_in_host});
    }
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  StrategyMoves moves_;
  std::int64_t left_, made_ = 0;
  Strategy& here_;
  Score& score_;
  std::vector<Neighbour> near_;
  std::vector<Strategy> seen_;  // of the climb at hand
  std::optional<Neighbour> best_;
};

}  // namespace

std::int64_t climb_neighbours(const Problem& problem, Evaluator& evaluator, std::int64_t most,
                              Strategy& strategy, Score& score) {
  if (!strategy.bodies.empty() || strategy.schedule == Schedule::kInterleaved) return 0;
  return Neighbours(problem, evaluator, most, strategy, score).run();
}

}  // namespace agpcs
