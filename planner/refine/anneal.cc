// SPDX-License-Identifier: Apache-2.0
// Simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983) with reheats, after a cold search from
// every start. The parameters were chosen on training problems (refiner_bench --training 77
// --problems 28): kHot among 0.001, 0.005, 0.02 and 0.03; the part of the budget for the starts
// among 0, 0.3, 0.5 and 0.8. With walks, each round begins with climbs, which are cold, from where
// imagined walks end.
#include "planner/refine/imagined_walk.h"
#include "planner/refine/refiner.h"
#include "planner/refine/walk.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace agpcs {
namespace {

constexpr double kHot =
    0.005;  // first temperature: the worsening, relative to the cost, with odds 1/e
constexpr int kLevels = 64;  // from kHot, each kCooling of the one before: the last is kHot / 500
constexpr double kCooling = 0.907467;  // 500^(-1 / 64)

// One in so many evaluations of the budget is for the starts. The value with walks was chosen on
// the same problems (2 was tried too, and 0.7 of each round for walks).
constexpr int kStartsPart = 2, kStartsPartWithWalks = 4;
constexpr int kWalksPart = 2;  // with walks, one in so many evaluations of a round is for them

/// A round, which ends after part `until` of the budget. It cools from `level` to the last level.
struct Round {
  double until;
  int level;
};
constexpr Round kRounds[] = {{0.5, 0}, {0.75, 16}, {1, 24}};

/// Draws from the exponential distribution with mean 1, by comparisons alone (von Neumann, 1951),
/// so that no library's logarithm decides.
double exponential(Rng& rng) {
  for (int whole = 0;; ++whole) {
    const double first = rng.uniform();
    double last = first;
    bool odd = true;
    for (double next = rng.uniform(); next < last; next = rng.uniform()) {
      last = next;
      odd = !odd;
    }
    if (odd) return whole + first;
  }
}

/// Returns how much worse `to` is than `from`, relative to `from`. For broken solutions it compares
/// how much they break.
double worsening(double from, double to) {
  if (to <= from) return 0;
  const bool broken = from >= kBroken;
  if (to >= kBroken && !broken) return std::numeric_limits<double>::infinity();
  return (to - from) / std::max(broken ? from - kBroken : from, 1e-12);
}

class AnnealRefiner final : public Refiner {
 public:
  explicit AnnealRefiner(bool walks) : walks_(walks) {}
  std::string_view name() const override { return "anneal"; }

  void refine(SearchPoint& point, SearchBudget& budget, Rng rng) const override {
    RefineWalk walk(point, budget);
    search_from_starts(walk, budget, rng);
    const std::int64_t first = budget.made();
    const std::int64_t of = budget.left();
    std::int64_t begin = 0;
    for (const Round& round : kRounds) {
      const auto end = static_cast<std::int64_t>(static_cast<double>(of) * round.until);
      if (walks_) {
        climb_from_imagined(walk, budget, (end - begin) / kWalksPart, rng);
        begin = budget.made() - first;
      }
      walk.go_to_best();
      while (!walk.done() && budget.made() - first < end) {
        const std::int64_t made = budget.made() - first;
        const std::int64_t cooled = (made - begin) * (kLevels - round.level) / (end - begin);
        if (!step(walk, temperature(round.level + static_cast<int>(cooled)), rng)) break;
      }
      begin = end;
    }
    walk.go_to_best();
  }

 private:
  void search_from_starts(RefineWalk& walk, const SearchBudget& budget, Rng& rng) const {
    if (walk.starts() < 2) return;
    const int part = walks_ ? kStartsPartWithWalks : kStartsPart;
    const std::int64_t each = budget.left() / part / walk.starts();
    for (int start = 0; start < walk.starts(); ++start) {
      walk.go_to_start(start);
      for (std::int64_t i = 0; i < each && !walk.done(); ++i) {
        if (!step(walk, temperature(kLevels), rng)) break;
      }
    }
  }

  static void climb_from_imagined(RefineWalk& walk, const SearchBudget& budget, std::int64_t length,
                                  Rng& rng) {
    walk.climb_from_imagined(length, rng, [&](std::int64_t most) {
      const std::int64_t end = budget.made() + most;
      double cost = walk.cost();
      for (std::size_t in_vain = 0;
           in_vain < kClimbPatience && budget.made() < end && !walk.done();) {
        if (!step(walk, temperature(kLevels), rng)) return;
        in_vain = walk.cost() < cost ? 0 : in_vain + 1;
        cost = std::min(cost, walk.cost());
      }
    });
  }

  static double temperature(int level) {
    double result = kHot;
    for (int i = 0; i < level; ++i) result *= kCooling;
    return result;
  }

  /// Tries a move. Returns false if there is none.
  static bool step(RefineWalk& walk, double temperature, Rng& rng) {
    const std::vector<Move> move = walk.move_of_any_kind(rng);
    if (move.empty()) return false;
    const double cost = walk.evaluate(move).front().cost;
    if (worsening(walk.cost(), cost) <= temperature * exponential(rng)) {
      walk.take(move.front(), cost);
    }
    return true;
  }

  bool walks_;
};

}  // namespace

std::unique_ptr<Refiner> make_anneal_refiner() { return std::make_unique<AnnealRefiner>(false); }

std::unique_ptr<Refiner> make_anneal_refiner_with_walks() {
  return std::make_unique<AnnealRefiner>(true);
}

}  // namespace agpcs
