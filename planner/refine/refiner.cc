// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/refiner.h"

#include "ir/base/diagnostics.h"
#include "planner/refine/dqn.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

/// Leaves the point where it stands.
class NoRefiner final : public Refiner {
 public:
  std::string_view name() const override { return "none"; }
  void refine(SearchPoint& /*point*/, SearchBudget& /*budget*/, Rng /*rng*/) const override {}
};

std::unique_ptr<Refiner> make_shipped_dqn() { return make_dqn_refiner(shipped_policy()); }

constexpr RefinerEntry kRefiners[] = {
    {"dqn", "a policy that was trained on other problems proposes, a local search finishes",
     make_shipped_dqn},
    {"greedy", "hill climbing, from a disturbed best solution where no move helps",
     make_greedy_refiner},
    {"anneal", "simulated annealing, with reheats from the best solution", make_anneal_refiner},
    {"random", "random walks from the seeds", make_random_refiner},
    {"none", "keep the best seed", make_no_refiner},
};

}  // namespace

std::span<const RefinerEntry> refiners() { return kRefiners; }

Result<std::unique_ptr<Refiner>> make_refiner(std::string_view name) {
  std::vector<std::string> names;
  for (const RefinerEntry& entry : kRefiners) {
    if (entry.name == name) return entry.make();
    names.emplace_back(entry.name);
  }
  return Status(StatusCode::kUsage, fmt::format("unknown refiner '{}'\n  hint: {}", name,
                                                did_you_mean(name, names, "refiners")));
}

std::unique_ptr<Refiner> make_no_refiner() { return std::make_unique<NoRefiner>(); }

}  // namespace agpcs
