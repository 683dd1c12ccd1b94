// SPDX-License-Identifier: Apache-2.0
// best_below: every strategy of a small problem without divided state and parts of stages, as far
// as bounds do not exclude it.
#include "tests/bench/planning/skeletons.h"
#include "tests/bench/planning/small_cases.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace agpcs::bench {
namespace {

class Enumeration : public Skeletons {
 public:
  using Skeletons::Skeletons;

 private:
  /// With any buckets: those that hold no more than the last gradient end no earlier.
  double bound_of(const Stage& stage) override {
    double bound = passes_bound(stage);
    for (const Replica& r : stage.replicas) bound = std::max(bound, r.done + r.update);
    if (stage.replicas.size() < 2 || stage.each.empty()) return bound;
    const std::size_t last = stage.each.size() - 1;
    return std::max(bound, ready(stage, last) + least_reduced(stage, stage.bytes[last]) +
                               longest_update(stage));
  }

  void try_skeleton() override {
    groupings_.clear();
    for (const Stage& stage : stages_) {
      groupings_.push_back(groupings_of(stage, 1, longest_update(stage)));
      if (groupings_.back().empty()) return;
    }
    for (const Strategy& form : schedules_of(now_)) {
      now_ = form;
      try_recomputation();
    }
  }

  void try_recomputation() {
    std::vector<unsigned> fitting;
    std::vector<unsigned> masks;
    for (unsigned mask = 0; mask < 1U << stages_.size(); ++mask) masks.push_back(mask);
    std::stable_sort(masks.begin(), masks.end(), [](unsigned a, unsigned b) {
      return __builtin_popcount(a) < __builtin_popcount(b);
    });
    for (const unsigned mask : masks) {
      const bool needless = std::any_of(fitting.begin(), fitting.end(),
                                        [&](unsigned less) { return (less & mask) == less; });
      if (needless) continue;
      for (std::size_t s = 0; s < stages_.size(); ++s)
        now_.stages[s].recompute = (mask >> s & 1) != 0 ? kWholeStage : Recomputation{};
      now_.buckets.clear();
      if (evaluator_.lacking(now_) > 0) continue;
      fitting.push_back(mask);
      try_buckets();
    }
  }
};

}  // namespace

Optimum best_below(const Problem& problem, double below, std::int64_t most_evaluations) {
  return Enumeration(problem, below, most_evaluations).run();
}

}  // namespace agpcs::bench
