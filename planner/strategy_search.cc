// SPDX-License-Identifier: Apache-2.0
#include "planner/strategy_search.h"

#include "ir/check.h"
#include "planner/evaluate.h"
#include "planner/rough_fit.h"
#include "planner/strategy_features.h"
#include "planner/strategy_moves.h"
#include "planner/worker_pool.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

/// Devices beyond which a guess takes about as long as an evaluation: no imagination there.
constexpr int kMostDevices = 256;

/// What one thread needs.
struct Worker {
  explicit Worker(const Problem& problem)
      : evaluator(problem), moves(problem), rough_model(problem) {}
  RoughStep rough(const Strategy& strategy) {
    return rough_model.step(strategy, moves.timers().of(strategy));
  }
  Evaluator evaluator;
  StrategyMoves moves;
  RoughModel rough_model;
};

class Search : public StrategySearch {
 public:
  Search(const Problem& problem, std::vector<Strategy> starts, int threads)
      : problem_(problem), fixed_(problem), starts_(std::move(starts)), pool_(threads) {
    AGPCS_CHECK(!starts_.empty(), "a search without a start");
    for (int i = 0; i < pool_.workers(); ++i) {
      workers_.push_back(std::make_unique<Worker>(problem));
    }
    reference_ = workers_.front()->evaluator.evaluate(starts_.front()).step_seconds;
    go_to_start(0);
    kept_ = here_;
  }

  /// One that guesses, for `imagine`. `reference`: seconds that cost 1.
  Search(const Problem& problem, double reference)
      : problem_(problem),
        fixed_(problem),
        starts_(1),
        pool_(1),
        reference_(reference),
        guesses_(true) {
    workers_.push_back(std::make_unique<Worker>(problem));
  }

  Outcome outcome() const override { return here_.outcome; }
  const Strategy& strategy() const override { return here_.strategy; }
  const Score& score() const override { return here_.score; }

  std::vector<Move> moves(std::size_t most, Rng& rng) override {
    return workers_.front()->moves.list(here_.strategy, grouped(), most, rng);
  }

  void describe(std::span<const Move> moves, std::span<Features> features) override {
    grouped();
    const StrategyView before = {&here_.strategy, here_.rough,
                                 workers_.front()->evaluator.lacking(here_.strategy)};
    for_each(moves.size(), [&](Worker& worker, std::size_t i) {
      const std::optional<Strategy> after = worker.moves.apply(here_.strategy, *grouped_, moves[i]);
      features[i] = features_of(problem_, fixed_, before, here_.score.step_seconds,
                                here_.score.exposed_communication, moves[i],
                                after ? view(worker, *after) : before);
    });
  }

  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    grouped();
    tried_.assign(moves.size(), {});
    for_each(moves.size(), [&](Worker& worker, std::size_t i) {
      tried_[i] = {moves[i], after(worker, moves[i])};
      outcomes[i] = tried_[i].place.outcome;
    });
    for (const Tried& tried : tried_) learn(tried.place);
  }

  void take(const Move& move) override {
    const auto found = std::find_if(tried_.begin(), tried_.end(),
                                    [&](const Tried& tried) { return tried.move == move; });
    Place place = found != tried_.end() ? std::move(found->place)
                                        : (grouped(), after(*workers_.front(), move));
    stand_at(std::move(place));
  }

  void keep() override { kept_ = here_; }
  void go_back() override { stand_at(kept_); }
  int starts() const override { return static_cast<int>(starts_.size()); }
  void go_to_start(int start) override {
    const Strategy& strategy = starts_[static_cast<std::size_t>(start)];
    stand_at(place_of(*workers_.front(), strategy));
  }

  SearchPoint* imagine() override {
    if (problem_.cluster.device_count() > kMostDevices) return nullptr;
    if (!imagined_) imagined_ = std::make_unique<Search>(problem_, reference_);
    Search& other = *imagined_;
    other.starts_.front() = here_.strategy;
    other.starts_.front().buckets.clear();
    fit_.solve();
    other.fit_ = fit_;
    other.off_ = here_.score.step_seconds / here_.rough.seconds - fit_.factor(here_.rough);
    other.go_to_start(0);
    other.keep();
    return &other;
  }
  void look_at(double most) override { looks_at_ = most; }
  void go_to_imagined() override {
    AGPCS_CHECK(imagined_ != nullptr, "went to what was never imagined");
    stand_at(place_of(*workers_.front(), imagined_->here_.strategy));
  }

 private:
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

  /// Calls `f(worker, i)` for i < count; worker w takes every i that is w modulo the workers.
  template <typename F>
  void for_each(std::size_t count, F f) {
    const auto workers = static_cast<std::size_t>(pool_.workers());
    pool_.run([&](int worker) {
      for (std::size_t i = static_cast<std::size_t>(worker); i < count; i += workers) {
        f(*workers_[static_cast<std::size_t>(worker)], i);
      }
    });
  }

  void learn(const Place& place) {
    if (!guesses_ && place.score.fits()) fit_.add(place.rough, place.score.step_seconds);
  }

  StrategyView view(Worker& worker, const Strategy& strategy) {
    return {&strategy, worker.rough(strategy), worker.evaluator.lacking(strategy)};
  }

  Place after(Worker& worker, const Move& move) {
    std::optional<Strategy> strategy = worker.moves.apply(here_.strategy, *grouped_, move);
    if (!strategy) return here_;
    return place_of(worker, std::move(*strategy), looks_at_);
  }

  /// `most`: that a guessed step may cost for its memory to be looked at.
  Place place_of(Worker& worker, Strategy strategy,
                 double most = std::numeric_limits<double>::infinity()) {
    if (kVerifyEveryCandidate) {
      const Status status =
          verify_strategy(strategy, problem_.graph, problem_.cluster, problem_.training.batch);
      AGPCS_CHECK(status.ok(), "{}", status.message());
    }
    Place place;
    place.rough = worker.rough(strategy);
    if (guesses_) {
      place.score.step_seconds = (fit_.factor(place.rough) + off_) * place.rough.seconds;
      if (place.score.step_seconds / reference_ <= most) {
        place.score.lacking = worker.evaluator.lacking(strategy);
      }
    } else {
      place.score = worker.evaluator.evaluate(strategy);
    }
    std::size_t ranks = 0;
    for (const StageSpec& spec : strategy.stages) ranks += spec.devices.size();
    const Score& score = place.score;
    place.outcome.cost = score.step_seconds / reference_;
    place.outcome.communication =
        score.exposed_communication / static_cast<double>(ranks) / reference_;
    if (!score.fits()) {
      const double lacking = static_cast<double>(score.lacking) / fixed_.least_memory;
      place.outcome.cost = kBroken * (1 + lacking) + std::min(place.outcome.cost, 1e3);
    }
    place.strategy = std::move(strategy);
    return place;
  }

  void stand_at(Place place) {
    here_ = std::move(place);
    grouped_.reset();
    tried_.clear();
  }

  const Strategy& grouped() {
    if (!grouped_) {
      grouped_ = here_.strategy;
      if (grouped_->buckets.empty() && !guesses_) {
        grouped_ = workers_.front()->evaluator.grouped(std::move(*grouped_));
      }
    }
    return *grouped_;
  }

  const Problem& problem_;
  ProblemFeatures fixed_;
  std::vector<Strategy> starts_;
  WorkerPool pool_;
  std::vector<std::unique_ptr<Worker>> workers_;
  double reference_ = 1;
  bool guesses_ = false;
  RoughFit fit_;
  double off_ = 0;  // where this one guesses: so that it is right where it began
  double looks_at_ = std::numeric_limits<double>::infinity();  // at the memory of guesses up to it
  std::unique_ptr<Search> imagined_;
  Place here_, kept_;
  std::optional<Strategy> grouped_;  // here_.strategy with its buckets, once it is asked for
  std::vector<Tried> tried_;         // last, from here
};

}  // namespace

std::unique_ptr<StrategySearch> make_strategy_search(const Problem& problem,
                                                     std::vector<Strategy> starts, int threads) {
  return std::make_unique<Search>(problem, std::move(starts), threads);
}

}  // namespace agpcs
