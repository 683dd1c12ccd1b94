// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/search.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/rough/fit.h"
#include "planner/refine/features.h"
#include "planner/refine/moves/moves.h"
#include "planner/refine/search_tools.h"
#include "planner/refine/worker_pool.h"
#include "planner/seed/fit_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

/// With more devices a guess takes about as long as an evaluation, so there is no imagined point.
constexpr int kMostDevices = 256;
/// Searches often return to a place where they stood. That many are remembered.
constexpr std::size_t kKnownPlaces = 16;

/// What both searches share: a strategy where they stand, and the moves from there. The derived
/// class says what a strategy costs.
class StrategyPoint : public StrategySearch {
 public:
  Outcome outcome() const override { return here_.outcome; }
  const Strategy& strategy() const override { return here_.strategy; }
  const Score& score() const override { return here_.score; }

  std::vector<Move> moves(std::size_t most, Rng& rng) override {
    const Strategy& with_buckets = grouped();
    listed_ = workers_.front()->moves.draw(here_.strategy, with_buckets, known().moves, most, rng);
    tried_.clear();
    std::vector<Move> moves;
    moves.reserve(listed_.size());
    for (const DrawnMove& drawn : listed_) {
      moves.push_back({static_cast<int>(drawn.move.index()), static_cast<int>(moves.size())});
    }
    return moves;
  }

  void describe(std::span<const Move> moves, std::span<Features> features) override {
    grouped();
    const StrategyView before = {&here_.strategy, here_.rough,
                                 workers_.front()->evaluator.lacking(here_.strategy)};
    for_each(moves.size(), [&](SearchWorker& worker, std::size_t i) {
      const std::optional<Strategy> after = applied(worker, moves[i]);
      StrategyView view_after = after ? view(worker, *after) : before;
      std::optional<Strategy> helped;
      if (after && view_after.lacking > 0) helped = with_help(worker, *after);
      if (helped) view_after = view(worker, *helped);
      features[i] =
          features_of(problem_, fixed_, before, here_.score.step_seconds,
                      here_.score.exposed_communication, listed(moves[i]).move, view_after);
    });
  }

  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    grouped();
    tried_.assign(moves.size(), {});
    for_each(moves.size(), [&](SearchWorker& worker, std::size_t i) {
      tried_[i] = {moves[i], after(worker, moves[i])};
      outcomes[i] = tried_[i].place.outcome;
    });
  }

  void take(const Move& move) override {
    const auto found = std::find_if(tried_.begin(), tried_.end(),
                                    [&](const Tried& tried) { return tried.move == move; });
    if (found != tried_.end() && found->place.score.whole) {
      stand_at(std::move(found->place));
      return;
    }
    look_at(kAnyCost);  // where the search stands, all is known
    grouped();
    stand_at(after(*workers_.front(), move));
  }
  void look_at(double most) override { looks_at_ = most; }

  void keep() override { kept_ = here_; }
  void go_back() override { stand_at(kept_); }

 protected:
  struct Place {
    Strategy strategy;
    RoughStep rough;
    Score score;
    Outcome outcome;
  };
  struct Tried {
    Move move;
    Place place;
  };

  /// `workers`: one a thread. `reference`: the seconds that cost 1.
  StrategyPoint(const Problem& problem, std::span<const std::unique_ptr<SearchWorker>> workers,
                double reference, MoveHelp help)
      : problem_(problem),
        reference_(reference),
        help_(help),
        pool_(static_cast<int>(workers.size())),
        fixed_(problem),
        workers_(workers) {}

  /// Returns what a strategy costs. May run on several threads, each with its own worker.
  virtual Score score_of(SearchWorker& worker, const Strategy& strategy,
                         const RoughStep& rough) = 0;
  /// Returns the strategy with the buckets from which moves of buckets start.
  virtual Strategy with_buckets(const Strategy& strategy) = 0;
  /// Returns whether it has other buckets than `strategy`.
  virtual bool needs_buckets(const Strategy& strategy) const = 0;

  Place place_of(SearchWorker& worker, Strategy strategy) {
    if (kVerifyEveryCandidate) {
      const Status status =
          verify_strategy(strategy, problem_.graph, problem_.cluster, problem_.training.batch);
      AGPCS_CHECK(status.ok(), "{}", status.message());
    }
    Place place;
    place.rough = worker.rough(strategy);
    place.score = score_of(worker, strategy, place.rough);
    std::size_t ranks = 0;
    for (const StageSpec& spec : strategy.stages) ranks += spec.devices.size();
    const Score& score = place.score;
    place.outcome.cost = cost_of(score);
    place.outcome.communication =
        score.exposed_communication / static_cast<double>(ranks) / reference_;
    place.strategy = std::move(strategy);
    return place;
  }

  void go_to(Strategy strategy) {
    look_at(kAnyCost);
    stand_at(place_of(worker(), std::move(strategy)));
  }
  double cost_of(const Score& score) const {
    const double seconds = score.step_seconds / reference_;
    if (score.fits()) return seconds;
    const double lacking = static_cast<double>(score.lacking) / fixed_.least_memory;
    return kBroken * (1 + lacking) + std::min(seconds, 1e3);
  }
  /// Returns whether as much is known of what costs `cost` as is looked at.
  bool suffices(const Score& score, double cost) const { return score.whole || cost > looks_at_; }

  void stand_at(Place place) {
    here_ = std::move(place);
    grouped_.reset();
    tried_.clear();
    known_ = nullptr;
  }

  /// What the formula guesses of a move.
  struct Guess {
    double cost = -1;        // without memory; -1: not yet known
    double with_memory = 0;  // the same, but broken where memory lacks
    bool counted = false;    // memory
  };
  /// What a move was judged to lead to.
  struct Judged {
    RoughStep rough;
    Score score;
    Outcome outcome;
  };
  /// What is known of a place where the search stood.
  struct KnownPlace {
    Strategy strategy;
    MovesFrom moves;
    std::vector<Guess> guesses;         // by number of the move
    std::map<int, Features> described;  // by number of the move
    std::map<int, Judged> judged;       // by number of the move
    std::uint64_t used = 0;             // when
  };

  /// What is known of the place here, which is looked up, or made.
  KnownPlace& known() {
    if (known_ != nullptr) return *known_;
    const auto found =
        std::find_if(known_places_.begin(), known_places_.end(),
                     [&](const KnownPlace& place) { return place.strategy == here_.strategy; });
    known_ = found != known_places_.end() ? &*found : &new_place();
    known_->used = ++lookups_;
    return *known_;
  }

  /// Returns what is known of the place here, instead of what was not used for longest.
  KnownPlace& new_place() {
    if (known_places_.size() < kKnownPlaces) known_places_.emplace_back();
    KnownPlace& place =
        *std::min_element(known_places_.begin(), known_places_.end(),
                          [](const KnownPlace& a, const KnownPlace& b) { return a.used < b.used; });
    place.strategy = here_.strategy;
    workers_.front()->moves.list(here_.strategy, grouped(), here_.rough.starved, place.moves);
    place.guesses.clear();
    place.described.clear();
    place.judged.clear();
    return place;
  }

  void forget_guesses() {
    for (KnownPlace& place : known_places_) place.guesses.clear();
  }

  const DrawnMove& listed(const Move& move) const {
    AGPCS_CHECK(at(move.index) < listed_.size(), "move {} of a list of {}", move.index,
                listed_.size());
    return listed_[at(move.index)];
  }

  /// The worker of the calling thread, where no others run.
  SearchWorker& worker() { return *workers_.front(); }
  const Place& here() const { return here_; }
  /// The moves that were evaluated last, from here.
  const std::vector<Tried>& tried() const { return tried_; }

  const Problem& problem_;
  double reference_;
  MoveHelp help_;
  WorkerPool pool_;
  double looks_at_ = kAnyCost;  // the most that a move may cost for its cost to matter

 private:
  /// Calls `f(worker, i)` for i < count. A worker that is done takes the next i.
  template <typename F>
  void for_each(std::size_t count, F f) {
    pool_.run_each(count, [&](int worker, std::size_t i) { f(*workers_[at(worker)], i); });
  }

  StrategyView view(SearchWorker& worker, const Strategy& strategy) {
    return {&strategy, worker.rough(strategy), worker.evaluator.lacking(strategy)};
  }

  std::optional<Strategy> applied(SearchWorker& worker, const Move& move) {
    const DrawnMove& drawn = listed(move);
    if (drawn.result) return drawn.result;
    const Strategy& with_buckets = grouped_ ? *grouped_ : here_.strategy;
    return worker.moves.apply(here_.strategy, with_buckets, drawn.move);
  }

  Place after(SearchWorker& worker, const Move& move) {
    std::optional<Strategy> strategy = applied(worker, move);
    if (!strategy) return here_;
    Place place = place_of(worker, *std::move(strategy));
    if (place.score.fits()) return place;
    std::optional<Strategy> helped = with_help(worker, place.strategy);
    return helped ? place_of(worker, *std::move(helped)) : place;
  }

  /// Returns `strategy`, which lacks memory, with help that makes it fit; nothing if there is none,
  /// or it is no pipeline, of which seeders have tried all help there is, or the place here does
  /// not fit, either: a search that mends it takes one move at a time.
  std::optional<Strategy> with_help(SearchWorker& worker, const Strategy& strategy) const {
    if (help_ == MoveHelp::kNo || !here_.score.fits()) return std::nullopt;
    if (strategy.stages.size() < 2) return std::nullopt;
    Strategy helped = strategy;
    if (!fit_without_buckets(problem_, worker.evaluator, helped, StateLevel::kGradients)) {
      return std::nullopt;
    }
    if (helped == here_.strategy) return std::nullopt;
    return helped;
  }

  const Strategy& grouped() {
    if (!grouped_ && needs_buckets(here_.strategy)) grouped_ = with_buckets(here_.strategy);
    return grouped_ ? *grouped_ : here_.strategy;
  }

  ProblemFeatures fixed_;
  std::span<const std::unique_ptr<SearchWorker>> workers_;
  Place here_, kept_;
  // here_.strategy with its buckets, where it has others, once they are needed.
  std::optional<Strategy> grouped_;
  std::vector<DrawnMove> listed_;  // the last list of moves
  std::vector<Tried> tried_;
  std::deque<KnownPlace> known_places_;
  KnownPlace* known_ = nullptr;  // of here, once it is needed
  std::uint64_t lookups_ = 0;
};

/// The imagined point: a strategy costs its rough step.
class ImaginingSearch final : public StrategyPoint {
 public:
  ImaginingSearch(const Problem& problem, std::span<const std::unique_ptr<SearchWorker>> worker,
                  double reference, MoveHelp help)
      : StrategyPoint(problem, worker, reference, help) {}

  /// Stands at `start` and keeps it. `off` is what makes `fit` right there.
  void begin(Strategy start, const RoughFit& fit, double off) {
    fit_ = fit;
    off_ = off;
    look_at(kAnyCost);
    start.buckets.clear();
    forget_guesses();
    start_ = place_of(worker(), std::move(start));
    stand_at(start_);
    keep();
  }

  void go_to_start(int /*start*/) override { stand_at(start_); }

  /// A walk proposes most moves from a place several times. What is known of them suffices, as a
  /// move that costs more than the search looks at is not taken.
  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    for (std::size_t i = 0; i < moves.size(); ++i) {
      Guess& guess = guess_of(moves[i]);
      if (guess.counted || guess.cost > looks_at_) {
        outcomes[i] = {guess.cost > looks_at_ ? guess.cost : guess.with_memory, 0};
        continue;
      }
      StrategyPoint::evaluate(moves.subspan(i, 1), outcomes.subspan(i, 1));
      guess.cost = tried().front().place.score.step_seconds / reference_;
      guess.counted = guess.cost <= looks_at_;
      guess.with_memory = outcomes[i].cost;
    }
  }

 private:
  Guess& guess_of(const Move& move) {
    std::vector<Guess>& guesses = known().guesses;
    if (guesses.empty()) guesses.resize(known().moves.effects.size());
    return guesses[at(listed(move).number)];
  }

  Score score_of(SearchWorker& worker, const Strategy& strategy, const RoughStep& rough) override {
    Score score;
    score.step_seconds = (fit_.factor(rough) + off_) * rough.seconds;
    if (score.step_seconds / reference_ > looks_at_ || worker.memory.most_lacking(strategy) <= 0) {
      return score;
    }
    score.lacking = worker.evaluator.lacking(strategy);
    return score;
  }

  Strategy with_buckets(const Strategy& strategy) override { return strategy; }
  bool needs_buckets(const Strategy& /*strategy*/) const override { return false; }

  RoughFit fit_;
  double off_ = 0;
  Place start_;
};

/// The search proper: a strategy costs its simulated step.
class SimulatingSearch : public StrategyPoint {
 public:
  SimulatingSearch(SearchTools::Impl& tools, std::vector<Strategy> starts, MoveHelp help)
      : StrategyPoint(tools.problem, tools.workers, 1, help),
        starts_(std::move(starts)),
        workers_(tools.workers),
        scores_(tools.scores) {
    AGPCS_CHECK(!starts_.empty(), "a search without a start");
    scores_.begin_search();
    reference_ = score_of(worker(), starts_.front(), {}).step_seconds;
    go_to_start(0);
    keep();
  }

  /// Climbs from the same place often ask for the same moves.
  void describe(std::span<const Move> moves, std::span<Features> features) override {
    std::map<int, Features>& described = known().described;
    const std::vector<Move> others = moves_not_in(described, moves);
    std::vector<Features> of_others(others.size());
    StrategyPoint::describe(others, of_others);
    for (std::size_t i = 0; i < others.size(); ++i) {
      described.emplace(listed(others[i]).number, of_others[i]);
    }
    for (std::size_t i = 0; i < moves.size(); ++i) {
      features[i] = described.at(listed(moves[i]).number);
    }
  }

  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    scores_.forget_if_many();
    std::map<int, Judged>& judged = known().judged;
    std::erase_if(judged, [&](const auto& move) {
      return !suffices(move.second.score, move.second.outcome.cost);
    });
    const std::vector<Move> others = moves_not_in(judged, moves);
    std::vector<Outcome> of_others(others.size());
    StrategyPoint::evaluate(others, of_others);
    for (const auto& [move, place] : tried()) {
      judged.emplace(listed(move).number, Judged{place.rough, place.score, place.outcome});
    }
    for (std::size_t i = 0; i < moves.size(); ++i) {
      const auto& [rough, score, outcome] = judged.at(listed(moves[i]).number);
      outcomes[i] = outcome;
      if (score.fits() && score.whole) fit_.add(rough, score.step_seconds);
    }
  }

  int starts() const override { return static_cast<int>(starts_.size()); }
  void go_to_start(int start) override { go_to(starts_[at(start)]); }

  int begin_walk() override {
    if (!may_walk()) return -1;
    if (walked_) begun_.clear();
    walked_ = false;
    fit_.solve();
    const RoughStep& rough = here().rough;
    const double off = here().score.step_seconds / rough.seconds - fit_.factor(rough);
    begun_.push_back({here().strategy, fit_, off});
    return static_cast<int>(begun_.size()) - 1;
  }

  void walk(const std::function<void(SearchPoint& imagined, int walk)>& walk) override {
    walked_ = true;
    walkers_.resize(at(pool_.workers()));
    pool_.run_each(begun_.size(), [&](int worker, std::size_t i) {
      std::unique_ptr<ImaginingSearch>& own = walkers_[at(worker)];
      if (own == nullptr) {
        own = std::make_unique<ImaginingSearch>(problem_, workers_.subspan(at(worker), 1),
                                                reference_, help_);
      }
      ImaginingSearch& walker = *own;
      walker.begin(std::move(begun_[i].strategy), begun_[i].fit, begun_[i].off);
      walk(walker, static_cast<int>(i));
      begun_[i].strategy = walker.strategy();
    });
  }

  bool go_to_end_of(int walk) override {
    AGPCS_CHECK(walked_, "went to the end of a walk that was never walked");
    const bool known = scores_.has(begun_[at(walk)].strategy);
    go_to(begun_[at(walk)].strategy);
    return known;
  }

 private:
  /// Returns the moves whose number `known` does not have.
  template <typename T>
  std::vector<Move> moves_not_in(const std::map<int, T>& known, std::span<const Move> moves) const {
    std::vector<Move> others;
    std::copy_if(moves.begin(), moves.end(), std::back_inserter(others),
                 [&](const Move& move) { return !known.contains(listed(move).number); });
    return others;
  }

  /// Walks learn from the steps of all moves that were evaluated, so those are run to their end.
  Score score_of(SearchWorker& worker, const Strategy& strategy,
                 const RoughStep& /*rough*/) override {
    const auto enough = [&](const Score& score) { return suffices(score, cost_of(score)); };
    return scores_.find(strategy, enough, [&] {
      if (looks_at_ < kAnyCost) {
        const double most = may_walk() ? kAnyCost : looks_at_ * reference_;
        const Score score = worker.evaluator.evaluate_up_to(strategy, most);
        if (enough(score)) return score;
      }
      return worker.evaluator.evaluate(strategy);
    });
  }

  Strategy with_buckets(const Strategy& strategy) override {
    return worker().evaluator.grouped(strategy);
  }
  bool needs_buckets(const Strategy& strategy) const override { return strategy.buckets.empty(); }

  bool may_walk() const { return problem_.cluster.device_count() <= kMostDevices; }

  /// Where a walk begins, then where it ended.
  struct Walk {
    Strategy strategy;
    RoughFit fit;
    double off = 0;
  };
  std::vector<Strategy> starts_;
  std::span<const std::unique_ptr<SearchWorker>> workers_;
  KnownScores& scores_;
  RoughFit fit_;
  std::vector<Walk> begun_;
  bool walked_ = false;
  std::vector<std::unique_ptr<ImaginingSearch>> walkers_;  // one a thread, once it walks
};

/// A search with tools of its own.
class LoneSearch final : private SearchTools, public SimulatingSearch {
 public:
  LoneSearch(const Problem& problem, std::vector<Strategy> starts, int threads, MoveHelp help)
      : SearchTools(problem, threads), SimulatingSearch(impl(), std::move(starts), help) {}
};

}  // namespace

std::unique_ptr<StrategySearch> make_strategy_search(SearchTools& tools,
                                                     std::vector<Strategy> starts, MoveHelp help) {
  return std::make_unique<SimulatingSearch>(tools.impl(), std::move(starts), help);
}

std::unique_ptr<StrategySearch> make_strategy_search(const Problem& problem,
                                                     std::vector<Strategy> starts, int threads,
                                                     MoveHelp help) {
  return std::make_unique<LoneSearch>(problem, std::move(starts), threads, help);
}

}  // namespace agpcs
