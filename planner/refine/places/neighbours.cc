// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/neighbours.h"

#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "planner/problem/hash.h"
#include "planner/problem/micro_batches.h"
#include "planner/refine/moves/moves.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/pool.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// The nearest neighbours that change one setting more: so many, with steps up to so many times as
/// long as that of the place here.
constexpr std::size_t kNearest = 24;
constexpr double kNear = 1.6;

class NeighbourClimb {
 public:
  NeighbourClimb(const Problem& problem, Evaluator& evaluator, ClimbBudget& budget,
                 Strategy& strategy, Score& score)
      : problem_(problem),
        evaluator_(evaluator),
        moves_(problem),
        budget_(budget),
        here_(strategy),
        score_(score) {}

  /// Returns how many evaluations it made.
  std::int64_t run() {
    while (climb()) {
    }
    return made_;
  }

 private:
  struct Judged {
    Strategy strategy;
    Score score;
  };

  /// Goes to the best neighbour. Returns whether it is better.
  bool climb() {
    near_.clear();
    seen_.clear();
    is_new(here_);
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
    for (const Judged& neighbour : nearest()) {
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
  std::vector<Judged> nearest() {
    std::stable_sort(near_.begin(), near_.end(),
                     [](const Judged& a, const Judged& b) { return is_better(a.score, b.score); });
    std::vector<Judged> nearest;
    for (const Judged& neighbour : near_) {
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

  /// Returns whether there is no budget.
  bool ends() {
    budget_.ended = budget_.ended || (budget_.interrupted != nullptr && *budget_.interrupted);
    return budget_.ended || budget_.left <= 0;
  }

  void look_at(std::optional<Strategy> changed) {
    if (!changed || ends()) return;
    if (evaluator_.lacking(*changed) <= 0) {
      judge(*std::move(changed));
      return;
    }
    --budget_.left;
    changed->buckets.clear();
    changed->flows.clear();
    const bool pipeline = changed->stages.size() > 1;
    const bool divides = std::ranges::any_of(
        changed->stages, [](const StageSpec& spec) { return spec.devices.size() > 1; });
    bool helped = help(*changed, [&](Strategy& strategy) {
      return fit_memory(problem_, evaluator_, strategy, StateLevel::kParameters);
    });
    const auto also = [&](auto fit) { helped = help(*changed, fit) || helped; };
    if (pipeline && helped) {  // otherwise that was tried
      also([&](Strategy& strategy) {
        return fit_with_parted_passes(problem_, evaluator_, strategy);
      });
    }
    for (const StateLevel level : kDividingLevels) {
      if (!divides) break;
      also([&](Strategy& strategy) {
        return fit_memory_by(problem_, evaluator_, strategy, level, SampleMoves::kYes);
      });
    }
    if (pipeline && !helped) {
      also([&](Strategy& strategy) {
        return fit_with_fewer_in_flight(problem_, evaluator_, strategy);
      });
    }
    if (!helped && !score_.fits()) judge(*std::move(changed));
  }

  /// Judges what `fit` makes of a strategy that lacks memory. Returns whether it made it fit.
  template <typename F>
  bool help(const Strategy& lacking, F fit) {
    Strategy helped = lacking;
    if (!fit(helped)) return false;
    judge(std::move(helped));
    return true;
  }

  /// Notes a strategy, and returns whether the climb at hand had not seen it.
  bool is_new(const Strategy& strategy) {
    std::uint64_t hash = hash_of(strategy.stage_of);
    hash = mix(hash, static_cast<std::uint64_t>(strategy.micro_batches));
    for (const StageSpec& spec : strategy.stages) {
      hash = mix(hash, hash_of(spec.devices));
      for (const std::int64_t share : spec.shares)
        hash = mix(hash, static_cast<std::uint64_t>(share));
    }
    std::vector<Strategy>& same = seen_[hash];
    if (std::ranges::find(same, strategy) != same.end()) return false;
    same.push_back(strategy);
    return true;
  }

  void judge(Strategy changed) {
    if (ends() || !is_new(changed)) return;
    --budget_.left;
    ++made_;
    const Score score = evaluator_.evaluate(changed);
    const Score& best = best_ ? best_->score : score_;
    if (is_clearly_better(score, best)) best_ = Judged{changed, score};
    if (score_.fits() && (!score.fits() || score.step_seconds > kNear * score_.step_seconds)) {
      return;
    }
    near_.push_back({std::move(changed), score});
  }

  /// Calls `visit(StrategyMove)` for each other setting of `strategy`.
  template <typename F>
  void for_each_setting(const Strategy& strategy, F visit) {
    const int stages = static_cast<int>(strategy.stages.size());
    const bool pipeline = stages > 1 && strategy.micro_batches > 1;
    for (const Schedule schedule : kPlainSchedules) {
      if (!pipeline || schedule == strategy.schedule) continue;
      if (schedule == Schedule::kZeroBubble && !may_part_passes(problem_, strategy)) continue;
      visit(SetSchedule{schedule});
    }
    const std::vector<std::int64_t> numbers = micro_batch_numbers(problem_);
    const auto now = std::find(numbers.begin(), numbers.end(), strategy.micro_batches);
    if (now != numbers.end() && now != numbers.begin()) visit(SetMicroBatches{*(now - 1)});
    if (now != numbers.end() && now + 1 != numbers.end()) visit(SetMicroBatches{*(now + 1)});
    for (int s = 0; s < stages; ++s) {
      const StageSpec& spec = strategy.stages[at(s)];
      if (s + 1 < stages) {
        for (const Neighbour to : {Neighbour::kNext, Neighbour::kPrevious}) {
          visit(ShiftCut{s, to, ShiftCut::Amount::kOneBlock});
        }
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
    for (const StateLevel level : kStateLevels) {
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
  ClimbBudget& budget_;
  std::int64_t made_ = 0;
  Strategy& here_;
  Score& score_;
  std::vector<Judged> near_;
  std::unordered_map<std::uint64_t, std::vector<Strategy>> seen_;  // in the climb at hand
  std::optional<Judged> best_;
};

}  // namespace

std::int64_t climb_neighbours(const Problem& problem, Evaluator& evaluator, ClimbBudget& budget,
                              Strategy& strategy, Score& score) {
  if (!strategy.bodies.empty() || strategy.schedule == Schedule::kInterleaved) return 0;
  return NeighbourClimb(problem, evaluator, budget, strategy, score).run();
}

}  // namespace agpcs
