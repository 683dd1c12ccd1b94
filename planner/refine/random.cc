// SPDX-License-Identifier: Apache-2.0
// Random walks: the least that another search must beat.
#include "planner/refine/refiner.h"
#include "planner/refine/walk.h"

#include <cstdint>

namespace agpcs {
namespace {

constexpr std::uint64_t kLongestWalk = 16;

/// Walks 1 to kLongestWalk moves, whatever they lead to. Every other walk begins at start 0, the
/// rest at any start.
class RandomRefiner final : public Refiner {
 public:
  std::string_view name() const override { return "random"; }

  void refine(SearchPoint& point, SearchBudget& budget, Rng rng) const override {
    RefineWalk walk(point, budget);
    for (std::int64_t number = 0; !walk.done(); ++number) {
      walk.go_to_start(number % 2 == 0 ? 0 : any_start(walk, rng));
      const std::uint64_t length = 1 + rng.below(kLongestWalk);
      for (std::uint64_t step = 0; step < length; ++step) {
        const std::vector<Move> move = walk.move_of_any_kind(rng);
        if (move.empty()) break;
        walk.take(move.front(), walk.evaluate(move).front().cost);
        if (walk.done()) break;
      }
      if (budget.made() == 0) break;  // there is no move
    }
    walk.go_to_best();
  }

 private:
  static int any_start(const RefineWalk& walk, Rng& rng) {
    return static_cast<int>(rng.below(static_cast<std::uint64_t>(walk.starts())));
  }
};

}  // namespace

std::unique_ptr<Refiner> make_random_refiner() { return std::make_unique<RandomRefiner>(); }

}  // namespace agpcs
