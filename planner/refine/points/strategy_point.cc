// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/points/strategy_point.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/evaluate/evaluate.h"
#include "planner/seed/fit_memory.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

/// Searches often return to a place where they stood. That many are remembered.
constexpr std::size_t kKnownPlaces = 16;

}  // namespace

template <typename F>
void StrategyPoint::for_each(std::size_t count, F f) {
  pool_.run_each(count, [&](int worker, std::size_t i) { f(*workers_[at(worker)], i); });
}

StrategyPoint::StrategyPoint(const Problem& problem,
                             std::span<const std::unique_ptr<SearchWorker>> workers,
                             double reference, MoveHelp help)
    : problem_(problem),
      reference_(reference),
      help_(help),
      pool_(static_cast<int>(workers.size())),
      fixed_(problem),
      workers_(workers) {}

std::vector<Move> StrategyPoint::moves(std::size_t most, Rng& rng) {
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

void StrategyPoint::describe(std::span<const Move> moves, std::span<Features> features) {
  grouped();
  const StrategyView before = {&here_.strategy, here_.rough,
                               workers_.front()->evaluator.lacking(here_.strategy)};
  for_each(moves.size(), [&](SearchWorker& worker, std::size_t i) {
    const std::optional<Strategy> after = applied(worker, moves[i]);
    StrategyView view_after = after ? view(worker, *after) : before;
    std::optional<Strategy> helped;
    if (after && view_after.lacking > 0) helped = with_help(worker, *after);
    if (helped) view_after = view(worker, *helped);
    features[i] = features_of(problem_, fixed_, before, here_.score.step_seconds,
                              here_.score.exposed_communication, listed(moves[i]).move, view_after);
  });
}

void StrategyPoint::evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) {
  grouped();
  tried_.assign(moves.size(), {});
  for_each(moves.size(), [&](SearchWorker& worker, std::size_t i) {
    tried_[i] = {moves[i], after(worker, moves[i])};
    outcomes[i] = tried_[i].place.outcome;
  });
}

void StrategyPoint::take(const Move& move) {
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

StrategyPoint::Place StrategyPoint::place_of(SearchWorker& worker, Strategy strategy) {
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

void StrategyPoint::go_to(Strategy strategy) {
  look_at(kAnyCost);
  stand_at(place_of(worker(), std::move(strategy)));
}

void StrategyPoint::stand_at(Place place) {
  here_ = std::move(place);
  grouped_.reset();
  tried_.clear();
  known_ = nullptr;
}

double StrategyPoint::cost_of(const Score& score) const {
  const double seconds = score.step_seconds / reference_;
  if (score.fits()) return seconds;
  const double lacking = static_cast<double>(score.lacking) / fixed_.least_memory;
  return kBroken * (1 + lacking) + std::min(seconds, 1e3);
}

StrategyPoint::KnownPlace& StrategyPoint::known() {
  if (known_ != nullptr) return *known_;
  const auto found =
      std::find_if(known_places_.begin(), known_places_.end(),
                   [&](const KnownPlace& place) { return place.strategy == here_.strategy; });
  known_ = found != known_places_.end() ? &*found : &new_place();
  known_->used = ++lookups_;
  return *known_;
}

StrategyPoint::KnownPlace& StrategyPoint::new_place() {
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

void StrategyPoint::forget_guesses() {
  for (KnownPlace& place : known_places_) place.guesses.clear();
}

const DrawnMove& StrategyPoint::listed(const Move& move) const {
  AGPCS_CHECK(at(move.index) < listed_.size(), "move {} of a list of {}", move.index,
              listed_.size());
  return listed_[at(move.index)];
}

StrategyView StrategyPoint::view(SearchWorker& worker, const Strategy& strategy) {
  return {&strategy, worker.rough(strategy), worker.evaluator.lacking(strategy)};
}

std::optional<Strategy> StrategyPoint::applied(SearchWorker& worker, const Move& move) {
  const DrawnMove& drawn = listed(move);
  if (drawn.result) return drawn.result;
  const Strategy& with_buckets = grouped_ ? *grouped_ : here_.strategy;
  return worker.moves.apply(here_.strategy, with_buckets, drawn.move);
}

StrategyPoint::Place StrategyPoint::after(SearchWorker& worker, const Move& move) {
  std::optional<Strategy> strategy = applied(worker, move);
  if (!strategy) return here_;
  Place place = place_of(worker, *std::move(strategy));
  if (place.score.fits()) return place;
  std::optional<Strategy> helped = with_help(worker, place.strategy);
  return helped ? place_of(worker, *std::move(helped)) : place;
}

std::optional<Strategy> StrategyPoint::with_help(SearchWorker& worker,
                                                 const Strategy& strategy) const {
  if (help_ == MoveHelp::kNo || !here_.score.fits()) return std::nullopt;
  if (strategy.stages.size() < 2) return std::nullopt;
  Strategy helped = strategy;
  if (!fit_without_buckets(problem_, worker.evaluator, helped, StateLevel::kGradients)) {
    return std::nullopt;
  }
  if (helped == here_.strategy) return std::nullopt;
  return helped;
}

const Strategy& StrategyPoint::grouped() {
  if (!grouped_ && needs_buckets(here_.strategy)) grouped_ = with_buckets(here_.strategy);
  return grouped_ ? *grouped_ : here_.strategy;
}

}  // namespace agpcs
