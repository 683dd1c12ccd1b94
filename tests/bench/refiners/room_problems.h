// SPDX-License-Identifier: Apache-2.0
// The problems with room that refiners are judged on, and the candidates that they are selected
// from: tight problems of families and shapes for judging, in turn, so that all pairs come up. The
// list is looked at as a whole only (docs/design/policy.md).
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

inline constexpr std::uint64_t kRoomSeed = 251'126;

inline GeneratedProblem room_candidate(int index) {
  const std::vector<ModelFamily> families = entries_for(model_families(), Purpose::kRoom);
  const std::vector<ClusterShape> shapes = entries_for(cluster_shapes(), Purpose::kRoom);
  const auto i = static_cast<std::size_t>(index);
  const ModelFamily& family = families[i % families.size()];
  const ClusterShape& shape = shapes[i % shapes.size()];
  const std::string name = fmt::format("room-{}-{}-{}", index, family.name, shape.name);
  return generate_problem({name, family.name, shape.name, kRoomSeed});
}

/// The rule that selects: of its seeds, the best fits, and the best of the long runs has a step of
/// at most this part of the best seed's. The runs are those of `find_best_known`.
inline constexpr double kRoomAtMost = 0.9;

/// Indices of candidates: the first that the rule selects.
inline constexpr int kRoomProblems[] = {0,  1,  2,  4,  5,  6,  7,  8,  11, 14, 15, 16, 18, 20,
                                        21, 23, 24, 25, 27, 29, 31, 33, 35, 36, 37, 38, 41, 42,
                                        43, 46, 47, 49, 50, 53, 54, 55, 56, 57, 58, 59};

}  // namespace agpcs::bench
