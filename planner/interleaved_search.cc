// SPDX-License-Identifier: Apache-2.0
#include "planner/interleaved_search.h"

#include "ir/base/at.h"
#include "planner/problem/micro_batches.h"
#include "planner/refine/moves/moves.h"
#include "planner/seed/candidates.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/layout/layout.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kMostOfAClimb = 24;       // evaluations
constexpr std::size_t kMostStarts = 4;  // pipelines whose device groups are taken
constexpr double kWorthAClimb = 1.3;    // of the best step, for pipelines and starts of climbs
constexpr int kMostEach = 16;

bool is_pipeline(const Strategy& strategy) {
  return strategy.stages.size() > 1 && strategy.bodies.empty() &&
         strategy.schedule != Schedule::kInterleaved;
}

/// Returns the device groups of a pipeline, with two stages for each.
Layout layout_of(const Strategy& pipeline) {
  Layout layout;
  layout.schedule = Schedule::kInterleaved;
  layout.each = 2;
  for (const StageSpec& spec : pipeline.stages) layout.stages.push_back({spec.devices, {}});
  return layout;
}

/// A place of the climb.
struct Round {
  int each = 2;
  std::int64_t micro_batches = 1;
  friend auto operator<=>(const Round&, const Round&) = default;
};

class InterleavedClimber {
 public:
  InterleavedClimber(const Problem& problem, Evaluator& evaluator,
                     const std::atomic<bool>* interrupted)
      : problem_(problem),
        evaluator_(evaluator),
        interrupted_(interrupted),
        layouts_(problem),
        numbers_(micro_batch_numbers(problem)) {}

  /// Climbs with the device groups of `pipeline`; returns the best strategy that is better than
  /// `least`.
  std::optional<Seed> climb(const Strategy& pipeline, const Score& least) {
    layout_ = layout_of(pipeline);
    tried_.clear();
    found_.reset();
    here_ = {2, pipeline.micro_batches};
    least_ = score_ = least;
    left_ = kMostOfAClimb;
    // The start need not be better than the pipeline: its neighbours may be.
    Score start;
    if (try_to_go(here_, start)) score_ = start;
    for (bool again = true; again && left_ > 0 && !is_interrupted();) {
      again = false;
      for (const Round& next : neighbours()) {
        Score score;
        if (left_ == 0 || is_interrupted() || !try_to_go(next, score)) continue;
        here_ = next;
        score_ = score;
        again = true;
        break;
      }
    }
    return std::exchange(found_, std::nullopt);
  }

  /// Goes from `found` to where one block is on the other side of a cut, as long as the step gets
  /// shorter.
  void shift_cuts(Seed& found) {
    StrategyMoves moves(problem_);
    left_ = kMostOfAClimb;
    for (bool again = true; again;) {
      again = false;
      const Seed here = found;
      for (int s = 0; s + 1 < static_cast<int>(here.strategy.stages.size()); ++s) {
        for (const Neighbour to : {Neighbour::kNext, Neighbour::kPrevious}) {
          if (left_ == 0 || is_interrupted()) return;
          again = try_shift({s, to, ShiftCut::Amount::kOneBlock}, moves, here, found) || again;
        }
      }
    }
  }

 private:
  bool is_interrupted() const { return interrupted_ != nullptr && interrupted_->load(); }

  std::vector<Round> neighbours() const {
    std::vector<Round> list;
    for (const int each : {here_.each + 1, here_.each - 1, 2 * here_.each}) {
      list.push_back({each, here_.micro_batches});
    }
    const auto place = std::ranges::find(numbers_, here_.micro_batches) - numbers_.begin();
    for (const std::ptrdiff_t step : {1, -1, 2, -2}) {
      const std::ptrdiff_t to = place + step;
      if (to < 0 || to >= std::ssize(numbers_)) continue;
      list.push_back({here_.each, numbers_[static_cast<std::size_t>(to)]});
    }
    std::erase_if(list, [&](const Round& round) { return !is_possible(round); });
    return list;
  }

  bool is_possible(const Round& round) const {
    const std::size_t stages = layout_.stages.size() * at(round.each);
    return round.each >= 2 && round.each <= kMostEach && stages <= kMostGroups &&
           stages <= static_cast<std::size_t>(problem_.blocks.size()) && !tried_.contains(round);
  }

  /// Looks at a strategy. Returns whether it is better than where the climb stands; `score` is then
  /// its own. The first one is, if it fits.
  bool try_to_go(const Round& next, Score& score) {
    if (!is_possible(next)) return false;
    const bool first = tried_.empty();
    tried_.insert(next);
    layout_.each = next.each;
    LayoutEffort effort;
    effort.most_seconds = (first ? kWorthAClimb : kRoughSlack) * most_seconds(score_);
    Result<std::optional<Strategy>> made = layouts_.of(layout_, next.micro_batches, effort);
    if (!made.ok() || !*made) return false;
    --left_;
    Strategy strategy = **std::move(made);
    score = first ? evaluator_.evaluate(strategy)
                  : evaluator_.evaluate_up_to(strategy, most_seconds(score_));
    if (!score.whole || !score.fits()) return false;
    keep_more(problem_, evaluator_, strategy, score);
    if (is_clearly_better(score, least_)) {
      least_ = score;
      found_ = Seed{std::move(strategy), score, "interleaved", false};
    }
    return first || is_clearly_better(score, score_);
  }

  /// Takes `here` with `shift` if that is clearly better than `found`. Devices have samples of
  /// their own, and so the same in all their stages.
  bool try_shift(const ShiftCut& shift, StrategyMoves& moves, const Seed& here, Seed& found) {
    Strategy from = here.strategy;
    from.buckets.clear();
    std::optional<Strategy> changed = moves.apply(from, from, shift);
    if (!changed) return false;
    for (std::size_t s = 0; s < changed->stages.size(); ++s) {
      changed->stages[s] = here.strategy.stages[s];
      changed->stages[s].recompute = {};
    }
    const Status valid =
        verify_strategy(*changed, problem_.graph, problem_.cluster, problem_.training.batch);
    if (!valid.ok()) return false;
    --left_;
    if (!fit_interleaved(problem_, evaluator_, *changed)) return false;
    Score score = evaluator_.evaluate(*changed);
    if (!score.fits()) return false;
    keep_more(problem_, evaluator_, *changed, score);
    if (!is_clearly_better(score, found.score)) return false;
    found = {*std::move(changed), score, found.seeder, false};
    return true;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  const std::atomic<bool>* interrupted_;
  LayoutStrategies layouts_;
  std::vector<std::int64_t> numbers_;
  // Of the current climb.
  Layout layout_;
  std::set<Round> tried_;
  Round here_;
  Score score_, least_;  // where it stands; the best so far
  std::optional<Seed> found_;
  int left_ = 0;
};

/// Returns the pipelines from whose device groups climbs start, the best first, no two of the same
/// groups.
std::vector<Strategy> starts_of(const Seed& best, const SeedPool& seeds) {
  std::vector<Strategy> starts;
  std::set<std::vector<std::vector<DeviceId>>> known;
  const auto add = [&](const Seed& seed) {
    if (starts.size() == kMostStarts || !is_pipeline(seed.strategy)) return;
    if (best.score.fits() && seed.score.step_seconds > kWorthAClimb * best.score.step_seconds) {
      return;
    }
    std::vector<std::vector<DeviceId>> groups;
    for (const StageSpec& spec : seed.strategy.stages) groups.push_back(spec.devices);
    if (known.insert(std::move(groups)).second) starts.push_back(seed.strategy);
  };
  add(best);
  for (const Seed& seed : seeds.bests(seeds.all().size())) add(seed);
  return starts;
}

}  // namespace

std::optional<Seed> search_interleaved(const Problem& problem, Evaluator& evaluator,
                                       const Seed& best, const SeedPool& seeds,
                                       const PlanOptions& options) {
  std::optional<Seed> found;
  const auto consider = [&](std::optional<Seed> seed) {
    if (!seed || !seed->score.fits()) return;
    if (is_better(seed->score, found ? found->score : best.score)) found = *std::move(seed);
  };
  for (const Seed& seed : seeds.all()) {
    if (seed.strategy.schedule == Schedule::kInterleaved) consider(seed);
  }
  if (!options.interleave) return found;
  InterleavedClimber climber(problem, evaluator, options.interrupted);
  for (const Strategy& start : starts_of(best, seeds)) {
    if (options.interrupted != nullptr && options.interrupted->load()) break;
    consider(climber.climb(start, found ? found->score : best.score));
  }
  if (found) climber.shift_cuts(*found);
  return found;
}

}  // namespace agpcs
