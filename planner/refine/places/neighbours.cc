// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/neighbours.h"

#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "planner/evaluate/known_scores.h"
#include "planner/problem/micro_batches.h"
#include "planner/refine/moves/moves.h"
#include "planner/refine/places/help.h"
#include "planner/refine/worker_pool.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/pool.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

/// The nearest neighbours that change one setting more: so many, with steps up to so many times as
/// long as that of the place here.
constexpr std::size_t kNearest = 24;
constexpr double kNear = 1.6;
/// Neighbours that each of several threads looks at before what they found is judged. One thread
/// judges each at once, so that it knows sooner how long a step may be to matter.
constexpr std::size_t kOfAThread = 8;
/// Climbs remember strategies of about so many numbers.
constexpr std::size_t kMostNumbers = std::size_t{1} << 22;
constexpr double kAnyStep = std::numeric_limits<double>::infinity();

}  // namespace

class NeighbourClimbs::Impl {
 public:
  Impl(const Problem& problem, std::vector<Evaluator*> evaluators)
      : problem_(problem),
        evaluators_(std::move(evaluators)),
        moves_(problem),
        pool_(static_cast<int>(evaluators_.size())) {}

  std::int64_t run(ClimbBudget& budget, ClimbReach reach, Strategy& strategy, Score& score) {
    budget_ = &budget;
    reach_ = reach;
    here_ = strategy;
    score_ = score;
    made_ = 0;
    while (!others_stood_here() && climb()) {
    }
    if (ends()) climbed_.erase(score_.step_seconds);  // nothing has gone on from there
    strategy = std::move(here_);
    score = score_;
    return made_;
  }

 private:
  /// What climbs know of a strategy.
  struct Known {
    Strategy strategy;
    bool looked_at = false;      // the next two are known
    bool lacks = false;          // memory
    std::vector<Known*> helped;  // what help makes of it, without its buckets, if it lacks memory
    std::optional<Score> score;
    int round = 0;  // the last that judged it
  };

  /// Returns whether a climb stood at a place with this step, and notes it. Those that reach
  /// further go on all the same.
  bool others_stood_here() {
    if (reach_ != ClimbReach::kSettings || !score_.fits()) return false;
    return !climbed_.insert(score_.step_seconds).second;
  }

  /// Goes to the best neighbour. Returns whether it is better.
  bool climb() {
    begin_round();
    look_at_moves_of(here_);
    look_at_settings_of(here_);
    judge_waiting();
    is_last_look_ = reach_ == ClimbReach::kSettings;
    for (const Known* const neighbour : nearest()) look_at_settings_of(neighbour->strategy);
    judge_waiting();
    if (best_ == nullptr && !is_last_look_) {
      is_last_look_ = true;
      for (const Known* const neighbour : nearest()) look_at_moves_of(neighbour->strategy);
      judge_waiting();
    }
    if (best_ == nullptr) return false;
    here_ = best_->strategy;
    score_ = *best_->score;
    return true;
  }

  void look_at_moves_of(const Strategy& strategy) {
    if (ends()) return;
    const Strategy grouped = evaluator().grouped(strategy);
    const MovesFrom from = moves_.all(strategy, grouped);
    const auto look = [&](const auto& move) { look_at(moves_.apply(strategy, grouped, move)); };
    std::apply([&](const auto&... lists) { (..., std::ranges::for_each(lists, look)); },
               from.lists);
  }

  void look_at_settings_of(const Strategy& strategy) {
    for_each_setting(strategy, [&](const StrategyMove& move) {
      look_at(moves_.apply(strategy, strategy, move));
    });
  }

  /// Forgets the round before, and all that is known if that is much.
  void begin_round() {
    if (remembered_ > kMostNumbers) {
      known_.clear();
      remembered_ = 0;
    }
    ++round_;
    is_last_look_ = false;
    near_.clear();
    near_steps_.clear();
    best_ = nullptr;
    known(here_).round = round_;
  }

  /// Returns the nearest neighbours, of equal ones the first.
  std::vector<Known*> nearest() {
    std::stable_sort(near_.begin(), near_.end(), [](const Known* a, const Known* b) {
      return is_better(*a->score, *b->score);
    });
    std::vector<Known*> nearest;
    for (Known* const neighbour : near_) {
      if (nearest.size() == kNearest) break;
      const bool alike = !nearest.empty() &&
                         nearest.back()->score->step_seconds == neighbour->score->step_seconds &&
                         nearest.back()->score->lacking == neighbour->score->lacking;
      if (!alike) nearest.push_back(neighbour);
    }
    return nearest;
  }

  /// Returns whether there is no budget.
  bool ends() {
    budget_->ended = budget_->ended || (budget_->interrupted != nullptr && *budget_->interrupted);
    return budget_->ended || budget_->left <= 0;
  }

  /// Notes that a neighbour is to be judged.
  void look_at(std::optional<Strategy> changed) {
    if (!changed || ends()) return;
    waiting_.push_back(&known(*std::move(changed)));
    const std::size_t threads = evaluators_.size();
    if (waiting_.size() >= (threads > 1 ? threads * kOfAThread : 1)) judge_waiting();
  }

  /// Judges those in their order. What takes long was worked out before, of several at a time.
  void judge_waiting() {
    if (ends()) return waiting_.clear();
    find_helped();
    find_scores();
    for (Known* const neighbour : waiting_) {
      if (ends()) break;
      if (neighbour->lacks) --budget_->left;
      for (Known* const one : judged_of(*neighbour)) judge(*one);
    }
    waiting_.clear();
  }

  /// Returns what is judged of a neighbour: itself; or if it lacks memory, what help makes of it;
  /// or what it is without buckets if nothing helps, as long as nothing fits.
  std::vector<Known*> judged_of(Known& neighbour) {
    if (!neighbour.lacks) return {&neighbour};
    if (!neighbour.helped.empty() || score_.fits()) return neighbour.helped;
    return {&known(without_buckets(neighbour.strategy))};
  }

  static Strategy without_buckets(Strategy strategy) {
    strategy.buckets.clear();
    strategy.flows.clear();
    return strategy;
  }

  /// Calls `f(evaluator, i)` for i < count, several at a time.
  template <typename F>
  void on_all(std::size_t count, F f) {
    pool_.run_each(count, [&](int worker, std::size_t i) { f(*evaluators_[at(worker)], i); });
  }

  /// Finds which of those that wait lack memory, and what help makes of them.
  void find_helped() {
    std::vector<Known*> others;
    for (Known* const one : waiting_) {
      if (!std::exchange(one->looked_at, true)) others.push_back(one);
    }
    std::vector<std::vector<Strategy>> helped(others.size());
    on_all(others.size(), [&](Evaluator& evaluator, std::size_t i) {
      others[i]->lacks = evaluator.lacking(others[i]->strategy) > 0;
      if (!others[i]->lacks) return;
      for_each_help(problem_, evaluator, without_buckets(others[i]->strategy),
                    [&](Strategy strategy) { helped[i].push_back(std::move(strategy)); });
    });
    for (std::size_t i = 0; i < others.size(); ++i) {
      for (Strategy& strategy : helped[i]) others[i]->helped.push_back(&known(std::move(strategy)));
    }
  }

  /// Finds the scores of what is judged of those that wait, as far as they matter.
  void find_scores() {
    const double most = most_that_matters();
    const auto suffices = [&](const Score& score) {
      return score.whole || (most < kAnyStep && (!score.fits() || score.step_seconds > most));
    };
    std::vector<Known*> others;
    for (Known* const neighbour : waiting_) {
      for (Known* const one : judged_of(*neighbour)) {
        if (one->round == round_ || (one->score && suffices(*one->score))) continue;
        if (std::ranges::find(others, one) == others.end()) others.push_back(one);
      }
    }
    on_all(others.size(), [&](Evaluator& evaluator, std::size_t i) {
      const Strategy& strategy = others[i]->strategy;
      others[i]->score =
          most < kAnyStep ? evaluator.evaluate_up_to(strategy, most) : evaluator.evaluate(strategy);
    });
  }

  const Score& best_score() const { return best_ != nullptr ? *best_->score : score_; }

  /// Returns the seconds beyond which it does not matter how long the step of a neighbour is.
  double most_that_matters() const {
    if (!score_.fits()) {
      return is_last_look_ && best_score().fits() ? best_score().step_seconds : kAnyStep;
    }
    if (is_last_look_) return best_score().step_seconds;
    const double near = kNear * score_.step_seconds;
    if (near_steps_.size() < kNearest) return near;
    return std::max(best_score().step_seconds, std::min(near, near_steps_.back()));
  }

  /// Judges a strategy unless this round has. Needs: its score.
  void judge(Known& one) {
    if (ends() || one.round == round_) return;
    one.round = round_;
    --budget_->left;
    ++made_;
    const Score& score = *one.score;
    if (is_clearly_better(score, best_score())) best_ = &one;
    if (is_last_look_ || (score_.fits() && !(score.whole && score.fits() && is_near(score)))) {
      return;
    }
    near_.push_back(&one);
    note_step(score.step_seconds);
  }

  bool is_near(const Score& score) const {
    return score.step_seconds <= kNear * score_.step_seconds;
  }

  /// Notes the step of a near neighbour: the shortest few, no two alike, tell which can be among
  /// the nearest.
  void note_step(double seconds) {
    const auto place = std::ranges::lower_bound(near_steps_, seconds);
    if (place != near_steps_.end() && *place == seconds) return;
    near_steps_.insert(place, seconds);
    if (near_steps_.size() > kNearest) near_steps_.pop_back();
  }

  /// Returns what is known of a strategy.
  Known& known(Strategy strategy) {
    const std::uint64_t hash = KnownScores::hash_of_strategy(strategy);
    const auto [begin, end] = known_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second.strategy == strategy) return it->second;
    }
    remembered_ += KnownScores::size_of(strategy);
    Known& added = known_.emplace(hash, Known())->second;
    added.strategy = std::move(strategy);
    return added;
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

  Evaluator& evaluator() { return *evaluators_.front(); }

  const Problem& problem_;
  std::vector<Evaluator*> evaluators_;  // one a thread
  StrategyMoves moves_;
  WorkerPool pool_;
  std::unordered_multimap<std::uint64_t, Known> known_;
  std::size_t remembered_ = 0;  // numbers in `known_`
  int round_ = 0;               // of all climbs
  /// The steps of the places where climbs stood, in seconds. Places of equal steps are mostly the
  /// same but for the names of devices.
  std::set<double> climbed_;
  // Of the current climb.
  ClimbBudget* budget_ = nullptr;
  ClimbReach reach_ = ClimbReach::kSettings;
  std::int64_t made_ = 0;
  Strategy here_;
  Score score_;
  // Of the current round.
  bool is_last_look_ = false;  // nothing but the best neighbour matters
  std::vector<Known*> waiting_;
  std::vector<Known*> near_;
  std::vector<double> near_steps_;  // the shortest ones, ascending
  Known* best_ = nullptr;           // nullptr: the place here
};

NeighbourClimbs::NeighbourClimbs(const Problem& problem, std::vector<Evaluator*> evaluators)
    : impl_(std::make_unique<Impl>(problem, std::move(evaluators))) {}
NeighbourClimbs::~NeighbourClimbs() = default;

std::int64_t NeighbourClimbs::climb(ClimbBudget& budget, Strategy& strategy, Score& score,
                                    ClimbReach reach) {
  if (!strategy.bodies.empty() || strategy.schedule == Schedule::kInterleaved) return 0;
  return impl_->run(budget, reach, strategy, score);
}

std::int64_t climb_neighbours(const Problem& problem, Evaluator& evaluator, ClimbBudget& budget,
                              Strategy& strategy, Score& score, ClimbReach reach) {
  return NeighbourClimbs(problem, {&evaluator}).climb(budget, strategy, score, reach);
}

}  // namespace agpcs
