// SPDX-License-Identifier: Apache-2.0
// The parts of fit_memory that make stages with teams fit, and interleaved ones.
#include "ir/base/at.h"
#include "ir/strategy/interleaved.h"
#include "planner/seed/fit_memory.h"
#include "planner/team/parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

namespace agpcs {
namespace {

/// Gives the members of one stage's teams the parts with which the device that lacks most lacks
/// least.
void fit_parts_of(const Problem& problem, Evaluator& evaluator, Strategy& strategy, int stage) {
  const StageSpec& spec = strategy.stages[at(stage)];
  TeamBody& body = strategy.bodies[at(spec.body)];
  std::map<std::vector<std::int64_t>, int> known;
  std::vector<int> classes;  // by number of the member
  for (std::size_t m = 0; m < body.members(); ++m) {
    std::vector<std::int64_t> memory;
    for (std::size_t t = 0; t < spec.devices.size(); ++t) {
      memory.push_back(problem.cluster.kind_of(members_of(spec, t)[m]).memory_bytes);
    }
    classes.push_back(known.try_emplace(memory, static_cast<int>(known.size())).first->second);
  }
  if (known.size() == 1) return;
  const TeamBody whole = body;
  const OtherParts other(problem.graph, whole);
  const auto lacking = [&](const TeamParts& parts) {
    const std::optional<TeamBody> changed = other.with(parts);
    if (!changed) return std::numeric_limits<double>::infinity();
    body = *changed;
    return static_cast<double>(std::max<std::int64_t>(0, evaluator.lacking(strategy)));
  };
  const TeamParts parts = climb_parts(whole.parts, classes, lacking);
  lacking(parts);  // leaves the body with these parts
  if (parts == whole.parts) body = whole;
}

}  // namespace

bool fit_parts(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
               const std::vector<int>& stages) {
  std::int64_t lack = evaluator.lacking(strategy);
  // A stage helps as far as another one lacks more, so its turn comes again.
  for (std::int64_t before = lack + 1; lack > 0 && lack < before;) {
    before = lack;
    for (const int stage : stages) fit_parts_of(problem, evaluator, strategy, stage);
    lack = evaluator.lacking(strategy);
  }
  return lack <= 0;
}

bool fit_interleaved(const Problem& problem, Evaluator& evaluator, Strategy& strategy) {
  const int stages = static_cast<int>(strategy.stages.size()), round = round_size(strategy);
  const auto fits = [&](int stage) {
    const StageSpec& spec = strategy.stages[at(stage)];
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const std::int64_t bytes =
          evaluator.replica_bytes(strategy, stage, spec.shares[i], spec.recompute);
      if (bytes > problem.cluster.kind_of(spec.devices[i]).memory_bytes) return false;
    }
    return true;
  };
  bool all = true;
  for (int first = 0; first < round; ++first) {
    bool fit = fits(first);
    for (int stage = first; stage < stages && !fit; stage += round) {
      strategy.stages[at(stage)].recompute = kWholeStage;
      fit = fits(first);
    }
    all = all && fit;
  }
  return all;
}

}  // namespace agpcs
