// SPDX-License-Identifier: Apache-2.0
// What the search proper and the searches that it imagines share.
#pragma once

#include "planner/evaluate/rough/step.h"
#include "planner/problem/problem.h"
#include "planner/refine/features.h"
#include "planner/refine/moves/moves.h"
#include "planner/refine/search.h"
#include "planner/refine/search_tools.h"
#include "planner/refine/worker_pool.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace agpcs {

/// A strategy where a search stands, and the moves from there. The derived class says what a
/// strategy costs.
class StrategyPoint : public StrategySearch {
 public:
  Outcome outcome() const override { return here_.outcome; }
  const Strategy& strategy() const override { return here_.strategy; }
  const Score& score() const override { return here_.score; }

  std::vector<Move> moves(std::size_t most, Rng& rng) override;
  void describe(std::span<const Move> moves, std::span<Features> features) override;
  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override;

  void take(const Move& move) override;
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
                double reference, MoveHelp help);

  /// Returns what a strategy costs. May run on several threads, each with its own worker.
  virtual Score score_of(SearchWorker& worker, const Strategy& strategy,
                         const RoughStep& rough) = 0;
  /// Returns the strategy with the buckets from which moves of buckets start.
  virtual Strategy with_buckets(const Strategy& strategy) = 0;
  /// Returns whether it has other buckets than `strategy`.
  virtual bool needs_buckets(const Strategy& strategy) const = 0;

  Place place_of(SearchWorker& worker, Strategy strategy);
  void go_to(Strategy strategy);
  void stand_at(Place place);

  double cost_of(const Score& score) const;
  /// Returns whether as much is known of what costs `cost` as is looked at.
  bool suffices(const Score& score, double cost) const { return score.whole || cost > looks_at_; }

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
  KnownPlace& known();
  void forget_guesses();
  const DrawnMove& listed(const Move& move) const;

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
  void for_each(std::size_t count, F f);

  StrategyView view(SearchWorker& worker, const Strategy& strategy);
  std::optional<Strategy> applied(SearchWorker& worker, const Move& move);
  Place after(SearchWorker& worker, const Move& move);
  /// Returns `strategy`, which lacks memory, with help that makes it fit; nothing if there is none,
  /// or it is no pipeline, of which seeders have tried all help there is, or the place here does
  /// not fit, either: a search that mends it takes one move at a time.
  std::optional<Strategy> with_help(SearchWorker& worker, const Strategy& strategy) const;
  const Strategy& grouped();
  /// Returns what is known of the place here, instead of what was not used for longest.
  KnownPlace& new_place();

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

}  // namespace agpcs
