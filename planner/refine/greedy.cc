// SPDX-License-Identifier: Apache-2.0
// Iterated local search (Lourenco, Martin and Stutzle, 2003): climbs to a local optimum, disturbs
// the best solution at random, climbs again, and so on. With walks, it takes turns: it spends as
// much on climbs from where imagined walks end as it spent on the rest since the last turn.
#include "planner/refine/imagined_walk.h"
#include "planner/refine/refiner.h"
#include "planner/refine/walk.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

constexpr std::size_t kBatch = 8;      // moves of which it takes the best
constexpr std::size_t kPatience = 12;  // batches without a better move before a local optimum
constexpr std::uint64_t kShake = 4;    // most moves of a disturbance
constexpr int kStartEvery = 4;         // one in so many restarts is from another start

class GreedyRefiner final : public Refiner {
 public:
  explicit GreedyRefiner(bool walks) : walks_(walks) {}
  std::string_view name() const override { return "greedy"; }

  void refine(SearchPoint& point, SearchBudget& budget, Rng rng) const override {
    RefineWalk walk(point, budget);
    int start = 1;
    std::int64_t turn = 0;  // evaluations made when it began
    for (std::int64_t round = 0; !walk.done(); ++round) {
      const std::int64_t made = budget.made();
      if (round > 0 && round % kStartEvery == 0 && start < walk.starts()) {
        walk.go_to_start(start++);
      } else {
        walk.go_to_best();
        if (round > 0) shake(walk, rng);
      }
      climb(walk, budget, {budget.of(), kPatience}, rng);
      if (budget.made() == made) break;  // there is no move
      if (!walks_ || round % kStartEvery != 0) continue;
      walk.climb_from_imagined(budget.made() - turn, rng, [&](std::int64_t most) {
        climb(walk, budget, {budget.made() + most, kClimbPatience / kBatch}, rng);
      });
      turn = budget.made();
    }
    walk.go_to_best();
  }

 private:
  /// The limits at which a climb ends.
  struct Limits {
    std::int64_t made;     // evaluations made in all
    std::size_t failures;  // batches in vain
  };

  /// Takes the best of each batch as long as it is better than the current solution.
  static void climb(RefineWalk& walk, const SearchBudget& budget, const Limits& limits, Rng& rng) {
    for (std::size_t failures = 0;
         failures < limits.failures && budget.made() < limits.made && !walk.done();) {
      const auto batch = std::min(kBatch, static_cast<std::size_t>(limits.made - budget.made()));
      const std::vector<Move> moves = walk.moves(batch, rng);
      if (moves.empty()) return;
      const std::span<const Outcome> outcomes = walk.evaluate(moves);
      const std::size_t least = least_cost(outcomes);
      if (outcomes[least].cost < walk.cost()) {
        walk.take(moves[least], outcomes[least].cost);
        failures = 0;
      } else {
        if (moves.size() < batch) return;  // these were all moves
        ++failures;
      }
    }
  }

  /// Takes up to kShake moves, none of which breaks what is whole.
  static void shake(RefineWalk& walk, Rng& rng) {
    const std::uint64_t count = 1 + rng.below(kShake);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::vector<Move> move = walk.move_of_any_kind(rng);
      if (move.empty()) return;
      const double cost = walk.evaluate(move).front().cost;
      if (cost < std::max(kBroken, walk.cost())) walk.take(move.front(), cost);
    }
  }

  bool walks_;
};

}  // namespace

std::unique_ptr<Refiner> make_greedy_refiner() { return std::make_unique<GreedyRefiner>(false); }

std::unique_ptr<Refiner> make_greedy_refiner_with_walks() {
  return std::make_unique<GreedyRefiner>(true);
}

}  // namespace agpcs
