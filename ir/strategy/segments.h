// SPDX-License-Identifier: Apache-2.0
// Segments: the parts of a stage that compute their forward passes again, one after the other.
#pragma once

#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace agpcs {

/// The most segments of a stage.
inline constexpr int kMostSegments = 128;

/// Returns where the recomputed segments of a stage with the operators `ops` (ascending) end: the
/// first is ops[0, ends[0]), the next ops[ends[0], ends[1]), and so on. Nothing if the stage keeps
/// all; fewer than `segments` if it has fewer operators. One segment at least is recomputed.
///
/// Segments make about equally many elements, because one of them at a time holds what it makes.
/// Of the places where that is so, give or take half a segment, a cut is where the fewest elements
/// cross it, because they are held all the time: between two layers of a transformer, say. Cost:
/// O(operators + edges).
std::vector<std::size_t> segment_ends(const Graph& graph, const std::vector<OpId>& ops,
                                      const Recomputation& recompute);

/// Returns the same of a stage of a plan, which has `operators` operators.
std::vector<std::size_t> segment_ends(const PlanStage& stage, std::size_t operators);

/// Returns the recomputation whose first `ends.size()` segments end there; nothing if there is
/// none. Cost: that of `segment_ends` times the number of segments that are tried.
std::optional<Recomputation> recomputation_of(const Graph& graph, const std::vector<OpId>& ops,
                                              const std::vector<std::size_t>& ends);

}  // namespace agpcs
