// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/search.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/evaluate/rough/fit.h"
#include "planner/refine/points/imagining_search.h"
#include "planner/refine/points/strategy_point.h"
#include "planner/refine/search_tools.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

namespace agpcs {
namespace {

/// With more devices a guess takes about as long as an evaluation, so there is no imagined point.
constexpr int kMostDevices = 256;

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
