// SPDX-License-Identifier: Apache-2.0
// Segments: the parts of a stage that keep less on the device, one after the other: they compute
// their forward passes again, or keep what these make in the memory of the host.
#pragma once

#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace agpcs {

/// The most segments of a stage.
inline constexpr int kMostSegments = 128;

/// Finds where such segments of stages of one graph end. It keeps what does not depend on
/// the stage, and its buffers, from call to call. It refers to the graph, and is not for concurrent
/// use.
class Segments {
 public:
  /// Cost: O(tensors).
  explicit Segments(const Graph& graph);

  /// Returns the ends of a stage with the operators `ops` (ascending): the first segment is
  /// ops[0, ends[0]), the next ops[ends[0], ends[1]), and so on. Nothing if the stage keeps all;
  /// fewer than `segments` if it has fewer places where one may end.
  /// One segment at least is not kept.
  ///
  /// Segments make about equally many elements, because one of them at a time holds what it makes.
  /// Of the places where that is so, give or take half a segment, a cut is where the fewest
  /// elements cross it, because they are held all the time: between two layers of a transformer,
  /// say. No segment ends inside a fused attention, whose scores nobody holds. Cost: O(operators +
  /// edges), and a binary search for each operator of a fused attention.
  std::vector<std::size_t> ends(const std::vector<OpId>& ops, const Recomputation& recompute);

  /// Returns the recomputation whose first `ends.size()` segments end there, of which it says that
  /// they compute again; nothing if there is none. Cost: that of `ends` times the number of
  /// segments that are tried.
  std::optional<Recomputation> recomputation_of(const std::vector<OpId>& ops,
                                                const std::vector<std::size_t>& ends);

 private:
  void find_places(const std::vector<OpId>& ops);
  void sum_elements(const std::vector<OpId>& ops);
  std::size_t best_end(std::int64_t number, std::int64_t count, std::size_t first,
                       std::size_t last) const;
  std::vector<std::size_t> all_ends(std::size_t count) const;

  const Graph& graph_;
  std::vector<TensorId> root_;          // by TensorId: what holds its storage
  std::vector<std::int64_t> elements_;  // by TensorId, of one sample; 0 if it holds none
  std::vector<std::size_t> last_read_;  // by root: the place after the last operator that reads it
  // Of the stage at hand, by place.
  std::vector<std::size_t> places_;     // how many operators are before it, ascending
  std::vector<std::int64_t> made_;      // elements that operators before it make
  std::vector<std::int64_t> crossing_;  // those of them that operators after it read
};

/// Calls, in the order of a backward pass over `operators` operators, `back(i)` for each, and
/// `repeat(first, end)` for each segment that ends there before its last operator.
template <typename Repeat, typename Back>
void walk_back(std::size_t operators, const std::vector<std::size_t>& segment_ends, Repeat repeat,
               Back back) {
  std::size_t segment = segment_ends.size();
  for (std::size_t i = operators; i-- > 0;) {
    if (segment > 0 && i + 1 == segment_ends[segment - 1]) {
      --segment;
      repeat(segment == 0 ? 0 : segment_ends[segment - 1], segment_ends[segment]);
    }
    back(i);
  }
}

/// Returns where they end in a stage of a plan, which has `operators` operators.
std::vector<std::size_t> segment_ends(const PlanStage& stage, std::size_t operators);

}  // namespace agpcs
