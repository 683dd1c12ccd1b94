// SPDX-License-Identifier: Apache-2.0
// The 60 problems that judged refiners until the list with room did; of regression now. Candidates
// are of families and shapes that are for them, in turn, each pair once in 60. One was selected if
// greedy, anneal, random or the policy that shipped then found a step at least 2% shorter than the
// best seed's in 3,000 evaluations (docs/design/policy.md).
#pragma once

#include "planner/learn/problems/generated_clusters.h"
#include "planner/learn/problems/generated_models.h"
#include "planner/learn/problems/problem_generator.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs::bench {

inline constexpr std::uint64_t kSixtySeed = 60'117;

inline GeneratedProblem sixty_candidate(int index) {
  const std::vector<ModelFamily> families = entries_for(model_families(), Purpose::kSixty);
  const std::vector<ClusterShape> shapes = entries_for(cluster_shapes(), Purpose::kSixty);
  const auto i = static_cast<std::size_t>(index);
  const ModelFamily& family = families[i % families.size()];
  const ClusterShape& shape = shapes[(i + i / families.size()) % shapes.size()];
  // The name is part of the seed, so it stays.
  const std::string name = fmt::format("judge-{}-{}-{}", index, family.name, shape.name);
  return generate_problem({name, family.name, shape.name, kSixtySeed});
}

/// Indices of candidates.
inline constexpr int kSixtyProblems[] = {
    1,   3,   4,   5,   9,   10,  14,  23,  28,  32,  33,  35,  37,  38,  40,
    42,  43,  44,  45,  48,  49,  57,  59,  62,  63,  64,  67,  76,  81,  83,
    85,  90,  92,  93,  94,  96,  98,  101, 103, 104, 108, 109, 118, 121, 127,
    129, 130, 134, 141, 143, 145, 147, 149, 154, 165, 168, 170, 181, 183, 185};

}  // namespace agpcs::bench
