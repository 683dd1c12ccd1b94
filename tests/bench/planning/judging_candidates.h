// SPDX-License-Identifier: Apache-2.0
// The problems that judging problems are selected from: families and shapes that are for judging,
// in turn, each pair once in 60. Tells nothing of what a refiner finds on them.
#pragma once

#include "ir/base/rng.h"
#include "planner/learn/problems/generated_clusters.h"
#include "planner/learn/problems/generated_models.h"
#include "planner/learn/problems/problem_generator.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace agpcs::bench {

inline constexpr std::uint64_t kJudgingSeed = 60'117;

/// Those of a table that are for judging.
template <typename Entry>
std::vector<Entry> for_judging(std::span<const Entry> table) {
  std::vector<Entry> entries;
  for (const Entry& entry : table) {
    if (entry.purpose == Purpose::kJudging) entries.push_back(entry);
  }
  return entries;
}

inline GeneratedProblem judging_candidate(int index) {
  const std::vector<ModelFamily> families = for_judging(model_families());
  const std::vector<ClusterShape> shapes = for_judging(cluster_shapes());
  const auto i = static_cast<std::size_t>(index);
  const ModelFamily& family = families[i % families.size()];
  const ClusterShape& shape = shapes[(i + i / families.size()) % shapes.size()];
  const std::string name = fmt::format("judge-{}-{}-{}", index, family.name, shape.name);
  return generate_problem({name, family.name, shape.name, kJudgingSeed});
}

}  // namespace agpcs::bench
