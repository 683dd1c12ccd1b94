// SPDX-License-Identifier: Apache-2.0
// StepBuckets: the buckets in which the evaluator sums the gradients of a strategy.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator_groups.h"
#include "planner/evaluate/evaluator_programs.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/evaluate/step/teams.h"
#include "planner/problem/problem.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

struct StepBucket {
  std::int64_t bytes = 0;  ///< bytes that travel
  std::int64_t elements = 0, tensors = 0;
  DType held = DType::kFp32;
  int stage = 0;  ///< the first of its stages
  int first = 0;  ///< index in StageInfo::firsts for its last gradient, if it has one stage
  AllReduce algorithm = AllReduce::kRing;
  GroupInfo* group = nullptr;                ///< the devices that sum it
  const PlanFlow* flow = nullptr;            ///< if the algorithm is `kFlow`
  const SharedParameters* shared = nullptr;  ///< if it has several stages
  std::vector<std::int64_t> parts = {};      ///< elements by device of `group`, if they divide it
  StateLevel state = StateLevel::kWhole;     ///< what these divide
  /// Of a stage with teams: what members sum, by their number; `bytes` are then those of the member
  /// that sums most, and `group` is that of the first members.
  std::vector<MemberSum> members = {};
  std::vector<TensorId> parameters = {};  ///< of a stage with teams
  OpId needed = kNone;  ///< before which backward passes need its parameters, if they are divided

  /// Calls `f(stage, first)` for each stage of it, with the index in its `firsts`.
  template <typename F>
  void for_each_stage(F f) const {
    if (shared == nullptr) return f(stage, first);
    for (std::size_t i = 0; i < shared->stages.size(); ++i) {
      f(shared->stages[i], shared->firsts[i]);
    }
  }
};

/// Writes the devices of some stages of `strategy` to `devices`, ascending.
void write_devices(const Strategy& strategy, const std::vector<int>& stages,
                   std::vector<DeviceId>& devices);

/// Returns the stage whose gradients are summed as the `place`-th. All sums of a rank are in one
/// order, and of its stages the last one has its gradients first.
int stage_to_sum(const Strategy& strategy, std::size_t place);

/// Refers to `stages`, `teams` and `groups`.
class StepBuckets {
 public:
  StepBuckets(const Problem& problem, StageTable& stages, TeamTable& teams, GroupTable& groups)
      : problem_(problem), stages_(stages), teams_(teams), groups_(groups) {}

  /// Makes the buckets that `strategy` has or, if it has none, those that `group_gradients` gives
  /// it. `devices`: the device groups of its stages. `teams`: by stage; nullptr: it has none. What
  /// it refers to must live on.
  void load(const Strategy& strategy, const PartitionInfo& partition,
            const std::vector<GroupInfo*>& devices, const std::vector<TeamInfo*>& teams);

  std::vector<StepBucket>& all() { return buckets_; }
  const std::vector<StepBucket>& all() const { return buckets_; }
  /// Returns them as those of a strategy, without parts.
  std::vector<Bucket> of_strategy() const;
  /// Writes what programs depend on.
  void write(PipelineShape& shape) const;

 private:
  StageInfo& info(int stage) const { return *partition_->stages[static_cast<std::size_t>(stage)]; }
  void group(const std::vector<GroupInfo*>& devices);
  void group_team(int stage, GroupInfo& of_stage, TeamInfo& team);
  void read(const std::vector<GroupInfo*>& devices);
  void set_members(const TeamInfo& team, StepBucket& bucket) const;
  StepBucket& add_shared(const SharedParameters& shared);

  const Problem& problem_;
  StageTable& stages_;
  TeamTable& teams_;
  GroupTable& groups_;
  const Strategy* strategy_ = nullptr;
  const PartitionInfo* partition_ = nullptr;
  const std::vector<TeamInfo*>* team_of_stage_ = nullptr;
  std::vector<StepBucket> buckets_;
  std::vector<DeviceId> sharing_;  // devices of stages that share a bucket
};

}  // namespace agpcs
