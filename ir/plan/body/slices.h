// SPDX-License-Identifier: Apache-2.0
// Slices: how gradients are summed where the replicas of a stage are unlike teams.
//
// Each replica has all elements of a parameter, divided among its members in its own way, or copied
// on them. The common refinement of these divisions cuts the parameter into slices, each of which
// every replica has on one member, or on several that have the same copies. What the same ranks
// have of a bucket is summed by one all-reduce.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// What a set of ranks sums of a bucket.
struct SliceSum {
  std::size_t group = 0;      ///< index into `StageSlices::groups`
  std::int64_t elements = 0;  ///< on each rank
};

/// What a rank gives to such a sum, and gets from it.
struct RankSlice {
  std::size_t group = 0;
  /// Where the elements lie in what the rank holds of the bucket (`held_by`), in an order that all
  /// ranks of the group have.
  std::vector<ElementRange> runs;
  /// Returns false for a copy that an earlier member of the replica gives: this rank gives zeros.
  bool counts = true;
  std::int64_t elements() const;
};

/// The slices of a stage whose replicas have unlike bodies. Refers to the plan.
///
/// Where all replicas have a slice on equally many members, each member sums it with those of its
/// number. Where they do not, all of these ranks sum it together, and each replica counts once.
/// Ranks sum what they have of a bucket in the order of `groups`, so that no two wait for each
/// other.
class StageSlices {
 public:
  /// Needs: `has_unlike_teams`, and bodies whose parameters are those of the stage's buckets.
  /// Cost: O(parameters x replicas x members x slices of each).
  StageSlices(const Plan& plan, int stage);

  /// Returns all sets of ranks that sum something, each ascending, in order.
  const std::vector<std::vector<int>>& groups() const { return groups_; }
  /// Returns the sums of a bucket, by group; none: it is not of the stage.
  std::vector<SliceSum> sums(int bucket) const;
  /// Returns the parts of `rank`, which is of the stage, in them.
  std::vector<RankSlice> of_rank(int bucket, int rank) const;

 private:
  /// A box of a parameter.
  struct Slice {
    std::size_t parameter = 0;         // of the bucket
    std::vector<ElementRange> ranges;  // by axis
    std::vector<int> group;            // the ranks that sum it, ascending
  };
  /// Adds the slices of a parameter, once for each group that sums them.
  void cut(const PlanBucket& bucket, std::size_t parameter, std::vector<Slice>& slices) const;
  std::size_t number_of(const std::vector<int>& group) const;

  const Plan& plan_;
  const PlanStage& stage_;
  std::vector<std::vector<int>> groups_;
  std::vector<std::vector<Slice>> slices_;  // by bucket of the plan; of each group that has one
};

}  // namespace agpcs
