// SPDX-License-Identifier: Apache-2.0
// DQN: the policy proposes, a local search finishes. The search climbs from each start. A climb
// lists moves, asks the network for their values, and evaluates them from the most promising on, a
// few at a time, until one of these improves. If the best of the list do not improve, the climb
// ends. The rest of the budget goes to rounds of three sorts in turns. Each round begins at the
// best place:
// * Imagined walks: climbs from where an imagined walk ends (imagined_walk.h). If that end is not
//   worth a climb, the next walk follows. Several walks are walked side by side. If the space has
//   no formula, the round is one of the next sort.
// * Iterated local search (Lourenco, Martin and Stuetzle, 2003): takes a few random moves, climbs
//   from there, and repeats. If the end of the climb is no better, it goes back.
// * Threshold accepting (Dueck and Scheuer, J. Comput. Phys. 90, 1990), which is annealing without
//   logarithms, so it is the same on every machine: draws one of a few listed moves, with
//   preference for those that the network ranks high, and takes it even if the place is worse by
//   less than a random part of the threshold. The threshold falls, and a climb ends the round.
// The search ends before its budget when several walks in a row ended where it had been before, and
// climbs from there found nothing: as walks begin at random starts, there is hardly anything else.
// Only the end depends on the budget: a search with a larger budget begins like one with a smaller,
// and ends no worse.
#include "planner/refine/dqn.h"
#include "planner/refine/imagined_walk.h"
#include "planner/refine/refiner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::size_t kChoices = 64;  // moves that a climb lists and values at a time
constexpr std::size_t kAtATime = 4;   // of these, moves evaluated at a time
constexpr double kLeast = 1e-9;       // a relative gain that counts

constexpr std::size_t kDraw = 12;    // moves from which a step of threshold accepting draws one
constexpr double kThreshold = 0.06;  // first threshold of a round, relative to the cost
constexpr std::int64_t kFirstClimb = 64, kOtherClimb = 8;  // evaluations of the climbs from starts
constexpr int kWalksInVain = 8;  // so many in a row that find nothing new end the search,
constexpr std::int64_t kLeastEvaluations = 400;  // but not before so many evaluations

class DqnSearch {
 public:
  /// `lambda`: for the rewards in the log. `episode`: the number of the first episode there.
  DqnSearch(QNetwork policy, SearchPoint& point, SearchBudget& budget, Rng rng, double lambda,
            std::int64_t episode)
      : policy_(std::move(policy)),
        point_(point),
        budget_(budget),
        rng_(rng),
        lambda_(lambda),
        episode_(episode) {}

  void run() {
    best_ = point_.outcome().cost;
    point_.keep();
    const int starts = point_.starts();
    for (int start = 0; start < starts && budget_.left() > 0; ++start) {
      point_.go_to_start(start);
      note();
      climb(start == 0 ? kFirstClimb : kOtherClimb);
      log();
    }
    for (std::int64_t length = kFirstRound; turn(length);) length *= 2;  // of each round
    point_.go_back();
  }

 private:
  /// Keeps the current place if it is the best.
  void note() {
    const double cost = point_.outcome().cost;
    if (cost >= best_) return;
    best_ = cost;
    point_.keep();
  }

  bool is_in_vain() const { return all_known_ && budget_.made() >= kLeastEvaluations; }

  /// Runs a round of each sort. Returns false when the budget, or all moves, are used up.
  bool turn(std::int64_t length) {
    for (void (DqnSearch::*const round)(std::int64_t) :
         {&DqnSearch::imagined_walks, &DqnSearch::local_search, &DqnSearch::threshold_accepting}) {
      const std::int64_t before = budget_.made();
      point_.go_back();
      (this->*round)(length);
      log();
      if (budget_.made() == before || budget_.left() <= 0 || is_in_vain()) return false;
    }
    return true;
  }

  /// Logs an episode: a climb from a start, or a round.
  void log() { budget_.log({episode_++, 0, 0, reward_of(point_.outcome(), lambda_), best_}); }

  /// Returns moves from here, the most valuable first.
  std::vector<Move> proposals(std::size_t most) {
    std::vector<Move> moves = point_.moves(most, rng_);
    features_.resize(moves.size());
    point_.describe(moves, features_);
    values_.clear();
    for (const Features& features : features_) values_.push_back(policy_.value(features));
    std::vector<std::size_t> order(moves.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values_[a] > values_[b]; });
    std::vector<Move> sorted;
    for (const std::size_t i : order) sorted.push_back(moves[i]);
    return sorted;
  }

  void climb(std::int64_t most) {
    const std::int64_t end = budget_.made() + most;
    while (budget_.left() > 0 && budget_.made() < end) {
      if (!step(proposals(kChoices))) return;
    }
  }

  void climb_in_round(std::int64_t length, std::int64_t end) {
    climb(std::min(climb_of_round(length), end - budget_.made()));
  }

  /// Takes the best of the first few moves among which one improves. Returns false if none does.
  bool step(const std::vector<Move>& moves) {
    const bool broken = point_.outcome().cost >= kBroken;  // if it is, nothing else counts
    const std::size_t last = broken ? moves.size() : std::min(moves.size(), kClimbPatience);
    for (std::size_t first = 0; first < last; first += kAtATime) {
      const std::size_t count =
          std::min({kAtATime, last - first, static_cast<std::size_t>(budget_.left())});
      if (count == 0) return false;
      const std::span<const Move> some(moves.data() + first, count);
      outcomes_.resize(count);
      point_.look_at(point_.outcome().cost);
      point_.evaluate(some, outcomes_);
      const auto best =
          std::min_element(outcomes_.begin(), outcomes_.end(),
                           [](const Outcome& a, const Outcome& b) { return a.cost < b.cost; });
      budget_.spend(static_cast<std::int64_t>(count), std::min(best_, best->cost));
      if (best->cost >= point_.outcome().cost * (1 - kLeast)) continue;
      point_.take(some[static_cast<std::size_t>(best - outcomes_.begin())]);
      note();
      return true;
    }
    return false;
  }

  /// Runs a round of iterated local search.
  void local_search(std::int64_t length) {
    const std::int64_t end = budget_.made() + length;
    while (budget_.left() > 0 && budget_.made() < end) {
      const std::int64_t before = budget_.made();
      for (std::uint64_t i = 1 + rng_.below(3); i > 0 && budget_.left() > 0; --i) random_move();
      climb_in_round(length, end);
      if (point_.outcome().cost > best_) point_.go_back();
      if (budget_.made() == before) return;
    }
  }

  /// Runs a round of climbs that begin where imagined walks end.
  void imagined_walks(std::int64_t length) {
    const std::int64_t end = budget_.made() + length;
    int walks = 0;
    const auto go_on = [&] {
      return walks < kWalksOfARound && !is_in_vain() && budget_.left() > 0 && budget_.made() < end;
    };
    const auto at_end = [&](bool known) {
      ++walks;
      budget_.spend(1, std::min(best_, point_.outcome().cost));
      note();
      const double before = best_;
      if (point_.outcome().cost <= kWorthAClimb * best_) climb_in_round(length, end);
      in_vain_ = known && best_ == before ? in_vain_ + 1 : 0;
      all_known_ = in_vain_ >= kWalksInVain || (all_known_ && best_ == before);
      if (point_.outcome().cost > best_) point_.go_back();
      return go_on();
    };
    while (go_on()) {
      const WalkEnd walked = walk_in_imagination(point_, budget_, rng_, at_end);
      if (walked == WalkEnd::kNoMove) return;
      if (walked == WalkEnd::kNoFormula) break;
    }
    if (is_in_vain()) return;
    if (budget_.left() > 0 && budget_.made() < end) local_search(end - budget_.made());
  }

  /// Takes a random move, unless it breaks what is whole.
  void random_move() {
    const std::vector<Move> moves = point_.moves(kChoices, rng_);
    if (moves.empty()) return;
    const Move move = moves[rng_.below(moves.size())];
    Outcome outcome;
    point_.look_at(point_.outcome().cost < kBroken ? kBroken : kAnyCost);
    point_.evaluate({&move, 1}, {&outcome, 1});
    budget_.spend(1, std::min(best_, outcome.cost));
    if (outcome.cost >= kBroken && point_.outcome().cost < kBroken) return;
    point_.take(move);
    note();
  }

  /// Runs a round of threshold accepting.
  void threshold_accepting(std::int64_t length) {
    const std::int64_t first = budget_.made(), end = first + length;
    const std::int64_t cold = end - length / 5;
    while (budget_.left() > 0 && budget_.made() < cold) {
      const double done = static_cast<double>(budget_.made() - first) / static_cast<double>(length);
      const double left = 1 - done;
      if (!threshold_step(kThreshold * left * left * left)) break;
    }
    climb(end - budget_.made());
  }

  /// Tries a move that the policy ranks high among a few. Returns false if there is none.
  bool threshold_step(double threshold) {
    const std::vector<Move> moves = proposals(kDraw);
    if (moves.empty()) return false;
    const double u = rng_.uniform();
    const auto rank = static_cast<std::size_t>(u * u * static_cast<double>(moves.size()));
    const Move move = moves[std::min(rank, moves.size() - 1)];
    const double here = point_.outcome().cost;
    const double most = here * (1 + threshold * rng_.uniform());
    const double taken = here < kBroken ? most : here;  // what is broken must mend
    Outcome outcome;
    point_.look_at(taken);
    point_.evaluate({&move, 1}, {&outcome, 1});
    budget_.spend(1, std::min(best_, outcome.cost));
    if (outcome.cost > taken) return true;
    point_.take(move);
    note();
    return true;
  }

  QNetwork policy_;
  SearchPoint& point_;
  SearchBudget& budget_;
  Rng rng_;
  double lambda_;
  double best_ = 0;
  std::int64_t episode_;
  int in_vain_ = 0;         // number of the last walks that found nothing new
  bool all_known_ = false;  // so many walks were in vain, and nothing better was found since
  std::vector<Features> features_;
  std::vector<double> values_;
  std::vector<Outcome> outcomes_;
};

class DqnRefiner : public Refiner {
 public:
  explicit DqnRefiner(QNetwork policy) : policy_(std::move(policy)) {}
  std::string_view name() const override { return "dqn"; }
  void refine(SearchPoint& point, SearchBudget& budget, Rng rng) const override {
    DqnSearch(policy_, point, budget, rng, DqnOptions().lambda, 0).run();
  }

 private:
  QNetwork policy_;
};

}  // namespace

void search_with_policy(const QNetwork& policy, SearchPoint& point, SearchBudget& budget, Rng rng,
                        double lambda, std::int64_t first_episode) {
  DqnSearch(policy, point, budget, rng, lambda, first_episode).run();
}

std::unique_ptr<Refiner> make_dqn_refiner(const QNetwork& policy) {
  return std::make_unique<DqnRefiner>(policy);
}

}  // namespace agpcs
