// SPDX-License-Identifier: Apache-2.0
// Groups: the sets of ranks that the collectives of a plan run over.
#pragma once

#include <agpcs/plan.h>

#include <optional>
#include <vector>

namespace agpcs {

/// Ranks with a number that no other group of the plan has. Numbers are, in this order: one for
/// each stage (its ranks; of teams, the first members), one for all ranks (`world_group`), one for
/// each set of stages that share buckets, and for each stage with teams one for each team, then one
/// for the members of each further number, or where teams are unlike one for each set of ranks that
/// sums slices (ir/plan/body/slices.h).
struct PlanGroup {
  int number = 0;
  std::vector<int> ranks;  ///< ascending
};

/// Returns the stages of `rank`, ascending; with Schedule::kInterleaved there are several.
std::vector<int> stages_of_rank(const Plan& plan, int rank);
/// Returns whether `rank` holds `bucket`: it is of one of its stages.
bool holds(const Plan& plan, int rank, const PlanBucket& bucket);

/// Returns the number of groups of a plan.
int group_count(const Plan& plan);
/// Returns the groups of `rank` but that of all ranks, by number. All ranks open theirs in this
/// order.
std::vector<PlanGroup> groups_of(const Plan& plan, int rank);
/// Returns the group of the team that `rank` is a member of; nullopt: it computes alone.
std::optional<PlanGroup> team_of(const Plan& plan, int rank);
/// Returns the group of the ranks that hold what `rank` holds of its stages: all of the stages (the
/// number is that of the first), or where replicas are teams the members of the same number. Needs:
/// its stage has no unlike teams.
PlanGroup replicas_of(const Plan& plan, int rank);
/// Returns the group with which `rank`, which holds `bucket`, sums it: the ranks of all its stages,
/// or where replicas are teams the members of the same number. Needs: no stage of it has unlike
/// teams.
PlanGroup summing_group(const Plan& plan, const PlanBucket& bucket, int rank);
/// Returns the groups that sum slices of buckets of stage `stage`, in the order of
/// `StageSlices::groups`; none where no teams are unlike.
std::vector<PlanGroup> slice_groups(const Plan& plan, int stage);
/// Returns all groups that sum `bucket`, which is one of the plan's, the first members' first: one,
/// or where replicas are teams one for the members of each number, or for each slice.
std::vector<PlanGroup> summing_groups(const Plan& plan, const PlanBucket& bucket);

/// Returns the bucket with the elements that `rank` holds of its parameters: a member of a team has
/// parts of some.
PlanBucket held_by(const Plan& plan, const PlanBucket& bucket, int rank);

}  // namespace agpcs
