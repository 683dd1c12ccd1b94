// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator_buckets.h"

#include "ir/base/at.h"
#include "ir/strategy/state_parts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace agpcs {

void write_devices(const Strategy& strategy, const std::vector<int>& stages,
                   std::vector<DeviceId>& devices) {
  devices.clear();
  for (const int stage : stages) {
    const std::vector<DeviceId>& own = strategy.stages[at(stage)].devices;
    devices.insert(devices.end(), own.begin(), own.end());
  }
  std::sort(devices.begin(), devices.end());
}

int stage_to_sum(const Strategy& strategy, std::size_t place) {
  const bool back = strategy.schedule == Schedule::kInterleaved;
  return static_cast<int>(back ? strategy.stages.size() - 1 - place : place);
}

void StepBuckets::load(const Strategy& strategy, const PartitionInfo& partition,
                       const std::vector<GroupInfo*>& devices,
                       const std::vector<TeamInfo*>& teams) {
  strategy_ = &strategy;
  partition_ = &partition;
  team_of_stage_ = &teams;
  buckets_.clear();
  strategy.buckets.empty() ? group(devices) : read(devices);
}

void StepBuckets::group(const std::vector<GroupInfo*>& devices) {
  const std::int64_t bytes = problem_.options.bucket_bytes;
  const bool parted = strategy_->schedule == Schedule::kZeroBubble;
  for (std::size_t place = 0; place < devices.size(); ++place) {
    const int stage = stage_to_sum(*strategy_, place);
    GroupInfo& of_stage = *devices[at(stage)];
    const StageSpec& spec = strategy_->stages[at(stage)];
    if (TeamInfo* const team = (*team_of_stage_)[at(stage)]) {
      group_team(stage, of_stage, *team);
      continue;
    }
    const StageInfo::Groups& groups =
        divided_by(spec, problem_.training) >= StateLevel::kGradients
            ? stages_.filled(info(stage), bytes)
        : bytes > 0 ? stages_.packed(info(stage), bytes)
                    : stages_.scheduled(info(stage), spec, parted, groups_.lines_of(of_stage),
                                        of_stage.number);
    const BucketSum sum = sum_of_stage(spec, problem_.training);
    for (const StageInfo::Group& bucket : groups) {
      buckets_.push_back({bucket.bytes, bucket.elements, bucket.tensors, bucket.held, stage,
                          bucket.first, groups_.choose(of_stage, bucket.bytes, sum), &of_stage});
    }
  }
  for (const SharedParameters* const shared : stages_.shared(*partition_, bytes)) {
    StepBucket& bucket = add_shared(*shared);
    bucket.algorithm = groups_.choose(*bucket.group, bucket.bytes, BucketSum::kOnAll);
  }
}

void StepBuckets::group_team(int stage, GroupInfo& of_stage, TeamInfo& team) {
  const std::int64_t bytes = problem_.options.bucket_bytes;
  const StageInfo::Groups& groups =
      bytes > 0 ? teams_.packed(team, bytes)
                : teams_.scheduled(team, strategy_->stages[at(stage)], groups_.lines_of(of_stage),
                                   of_stage.number);
  std::size_t next = 0;
  for (const StageInfo::Group& one : groups) {
    StepBucket bucket = {one.bytes, one.elements, one.tensors, one.held, stage};
    bucket.algorithm = groups_.choose(of_stage, one.bytes, BucketSum::kOnAll);
    bucket.group = &of_stage;
    for (std::int64_t i = 0; i < one.tensors; ++i) {
      bucket.parameters.push_back(team.parameters[next++].id);
    }
    set_members(team, bucket);
    buckets_.push_back(std::move(bucket));
  }
}

/// Sets what the members of teams sum of a bucket.
void StepBuckets::set_members(const TeamInfo& team, StepBucket& bucket) const {
  bucket.members.resize(team.work.members());
  bucket.bytes = 0;
  for (std::size_t m = 0; m < bucket.members.size(); ++m) {
    for (const TensorId id : bucket.parameters) {
      const MemberSum sum = teams_.sum_of(team, stages_.parameter(id), m);
      bucket.members[m].elements += sum.elements;
      bucket.members[m].bytes += sum.bytes;
    }
    bucket.bytes = std::max(bucket.bytes, bucket.members[m].bytes);
  }
}

StepBucket& StepBuckets::add_shared(const SharedParameters& shared) {
  StepBucket bucket;
  bucket.bytes = shared.bytes;
  bucket.elements = shared.elements;
  bucket.tensors = static_cast<std::int64_t>(shared.parameters.size());
  bucket.stage = shared.stages.front();
  bucket.held = stages_.parameter(shared.parameters.front()).gradient.held;
  bucket.shared = &shared;
  write_devices(*strategy_, shared.stages, sharing_);
  bucket.group = groups_.find(sharing_, nullptr);
  buckets_.push_back(std::move(bucket));
  return buckets_.back();
}

void StepBuckets::read(const std::vector<GroupInfo*>& devices) {
  for (const Bucket& bucket : strategy_->buckets) {
    if (bucket.is_shared()) {
      const SharedParameters& shared =
          stages_.shared_by(*partition_, bucket.stage, bucket.shared_with, bucket.parameters);
      StepBucket& own = add_shared(shared);
      own.algorithm = bucket.algorithm;
      own.parts = bucket.parts;
      own.state = bucket.state;
      continue;
    }
    StepBucket own;
    own.stage = bucket.stage;
    own.algorithm = bucket.algorithm;
    own.group = devices[at(bucket.stage)];
    own.parts = bucket.parts;
    own.state = bucket.state;
    if (bucket.flow >= 0) own.flow = &strategy_->flows[at(bucket.flow)];
    own.tensors = static_cast<std::int64_t>(bucket.parameters.size());
    OpId first = std::numeric_limits<OpId>::max();
    for (const TensorId id : bucket.parameters) {
      const StageInfo::Parameter& parameter = stages_.parameter(id);
      own.bytes += parameter.gradient.travelling_bytes;
      own.held = parameter.gradient.held;
      own.elements += parameter.gradient.elements;
      first = std::min(first, parameter.first);
    }
    own.first = info(bucket.stage).index_of(first);
    if (const TeamInfo* const team = (*team_of_stage_)[at(bucket.stage)]) {
      own.parameters = bucket.parameters;
      set_members(*team, own);
    }
    buckets_.push_back(std::move(own));
  }
}

std::vector<Bucket> StepBuckets::of_strategy() const {
  std::vector<Bucket> buckets;
  std::vector<std::size_t> next(strategy_->stages.size());  // next parameter, by stage
  for (const StepBucket& own : buckets_) {
    Bucket bucket = {own.stage, own.algorithm, {}};
    if (own.flow != nullptr) bucket.flow = static_cast<int>(own.flow - strategy_->flows.data());
    if (own.shared != nullptr) {
      bucket.parameters = own.shared->parameters;
      bucket.shared_with.assign(own.shared->stages.begin() + 1, own.shared->stages.end());
    }
    if (!own.members.empty()) bucket.parameters = own.parameters;
    const bool known = !bucket.parameters.empty();
    for (std::int64_t i = 0; i < own.tensors && !known; ++i) {
      bucket.parameters.push_back(info(own.stage).parameters[next[at(own.stage)]++].id);
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

void StepBuckets::write(PipelineShape& shape) const {
  shape.bucket_stage.clear();
  shape.states.clear();
  shape.sharers.clear();
  for (const StepBucket& bucket : buckets_) {
    const auto index = static_cast<int>(shape.bucket_stage.size());
    shape.bucket_stage.push_back(bucket.stage);
    shape.states.push_back(bucket.state);
    bucket.for_each_stage([&](int stage, int) {
      if (stage != bucket.stage) shape.sharers.emplace_back(index, stage);
    });
  }
}

}  // namespace agpcs
