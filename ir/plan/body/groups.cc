// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/body/groups.h"

#include "ir/base/check.h"
#include "ir/plan/body/body.h"
#include "ir/plan/body/slices.h"
#include "ir/plan/lookup.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace agpcs {
namespace {

/// Returns how many groups a stage has that only stages with teams have: its teams, and the members
/// of each further number, or where teams are unlike what sums slices.
int groups_for_teams(const Plan& plan, int s) {
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
  if (!stage.has_teams()) return 0;
  const std::size_t sums = stage.has_unlike_teams() ? StageSlices(plan, s).groups().size()
                                                    : stage.further_ranks.front().size();
  return static_cast<int>(stage.ranks.size() + sums);
}

/// Returns the number of the first of them, or what it would be.
int first_for_teams(const Plan& plan, int stage) {
  std::set<std::vector<int>> sharing;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_shared()) sharing.insert(stages_of(bucket));
  }
  int number = world_group(plan) + 1 + static_cast<int>(sharing.size());
  for (int s = 0; s < stage; ++s) {
    number += groups_for_teams(plan, s);
  }
  return number;
}

/// Returns the sets of ranks that sum slices of a stage, with their numbers.
std::vector<PlanGroup> numbered(const Plan& plan, int stage, const StageSlices& slices) {
  const PlanStage& of = plan.stages[static_cast<std::size_t>(stage)];
  int number = first_for_teams(plan, stage) + static_cast<int>(of.ranks.size());
  std::vector<PlanGroup> groups;
  for (const std::vector<int>& ranks : slices.groups()) groups.push_back({number++, ranks});
  return groups;
}

}  // namespace

std::vector<int> stages_of_rank(const Plan& plan, int rank) {
  const int first = plan.stage_of_rank(rank);
  if (first < 0 || !plan.interleaves()) return {first};
  return plan.stages_of_program(plan.program_of(first));
}

bool holds(const Plan& plan, int rank, const PlanBucket& bucket) {
  const std::vector<int> stages = stages_of_rank(plan, rank);
  return std::any_of(stages.begin(), stages.end(), [&](int stage) { return bucket.is_of(stage); });
}

int group_count(const Plan& plan) {
  return first_for_teams(plan, static_cast<int>(plan.stages.size()));
}

std::optional<PlanGroup> team_of(const Plan& plan, int rank) {
  const int s = plan.stage_of_rank(rank);
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
  if (!stage.has_teams()) return {};
  const int replica = replica_of(stage, rank);
  PlanGroup team{first_for_teams(plan, s) + replica,
                 stage.members(static_cast<std::size_t>(replica))};
  std::sort(team.ranks.begin(), team.ranks.end());
  return team;
}

PlanGroup replicas_of(const Plan& plan, int rank) {
  const int s = plan.stage_of_rank(rank);
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
  AGPCS_CHECK(!stage.has_unlike_teams(), "ranks of stage {} hold unlike parts", stage.name);
  const std::size_t member = member_of(stage, rank);
  if (member == 0) return {s, stage.ranks};
  PlanGroup group;
  group.number = first_for_teams(plan, s) + static_cast<int>(stage.ranks.size() + member) - 1;
  for (const std::vector<int>& further : stage.further_ranks) {
    group.ranks.push_back(further[member - 1]);
  }
  std::sort(group.ranks.begin(), group.ranks.end());
  return group;
}

PlanGroup summing_group(const Plan& plan, const PlanBucket& bucket, int rank) {
  if (!bucket.is_shared()) return replicas_of(plan, rank);
  return {group_of(plan, bucket), ranks_of(plan, bucket)};
}

std::vector<PlanGroup> slice_groups(const Plan& plan, int stage) {
  if (!plan.stages[static_cast<std::size_t>(stage)].has_unlike_teams()) return {};
  return numbered(plan, stage, StageSlices(plan, stage));
}

std::vector<PlanGroup> summing_groups(const Plan& plan, const PlanBucket& bucket) {
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(bucket.stage)];
  std::vector<PlanGroup> groups;
  if (stage.has_unlike_teams()) {
    const StageSlices slices(plan, bucket.stage);
    const std::vector<PlanGroup> all = numbered(plan, bucket.stage, slices);
    const auto index = static_cast<int>(&bucket - plan.buckets.data());
    for (const SliceSum& sum : slices.sums(index)) groups.push_back(all[sum.group]);
    return groups;
  }
  for (const int rank : stage.members(0)) groups.push_back(summing_group(plan, bucket, rank));
  return groups;
}

std::vector<PlanGroup> groups_of(const Plan& plan, int rank) {
  std::vector<PlanGroup> groups;
  const int s = plan.stage_of_rank(rank);
  if (plan.stages[static_cast<std::size_t>(s)].has_unlike_teams()) {
    for (PlanGroup& group : slice_groups(plan, s)) {
      if (std::binary_search(group.ranks.begin(), group.ranks.end(), rank)) {
        groups.push_back(std::move(group));
      }
    }
  } else {
    groups.push_back(replicas_of(plan, rank));
    for (const PlanBucket& bucket : plan.buckets) {
      if (holds(plan, rank, bucket)) groups.push_back(summing_group(plan, bucket, rank));
    }
  }
  if (std::optional<PlanGroup> team = team_of(plan, rank)) groups.push_back(*std::move(team));
  const auto number = [](const PlanGroup& a, const PlanGroup& b) { return a.number < b.number; };
  const auto same = [](const PlanGroup& a, const PlanGroup& b) { return a.number == b.number; };
  std::sort(groups.begin(), groups.end(), number);
  groups.erase(std::unique(groups.begin(), groups.end(), same), groups.end());
  return groups;
}

PlanBucket held_by(const Plan& plan, const PlanBucket& bucket, int rank) {
  const int s = plan.stage_of_rank(rank);
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
  if (!stage.has_teams() || !bucket.is_of(s)) return bucket;
  PlanBucket held = bucket;
  for (BucketMember& parameter : held.members) {
    PlanBucket one = bucket;
    one.members = {parameter};
    parameter.elements = rank_elements(plan, one, s, rank);
  }
  return held;
}

}  // namespace agpcs
