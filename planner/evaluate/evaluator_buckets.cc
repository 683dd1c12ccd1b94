// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator_buckets.h"

#include "ir/base/at.h"
#include "ir/strategy/state_parts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace agpcs {

void StepBuckets::load(const Strategy& strategy, const PartitionInfo& partition,
                       const std::vector<GroupInfo*>& devices) {
  strategy_ = &strategy;
  partition_ = &partition;
  buckets_.clear();
  strategy.buckets.empty() ? group(devices) : read(devices);
}

void StepBuckets::group(const std::vector<GroupInfo*>& devices) {
  const std::int64_t bytes = problem_.options.bucket_bytes;
  const bool parted = strategy_->schedule == Schedule::kZeroBubble;
  for (int stage = 0; stage < static_cast<int>(devices.size()); ++stage) {
    GroupInfo& of_stage = *devices[at(stage)];
    const StageSpec& spec = strategy_->stages[at(stage)];
    const StageInfo::Groups& groups =
        divided_by(spec, problem_.training) >= StateLevel::kGradients
            ? stages_.filled(info(stage), bytes)
        : bytes > 0 ? stages_.packed(info(stage), bytes)
                    : stages_.scheduled(info(stage), spec, parted, groups_.lines_of(of_stage),
                                        of_stage.number);
    for (const StageInfo::Group& bucket : groups) {
      buckets_.push_back({bucket.bytes, bucket.elements, bucket.tensors, bucket.held, stage,
                          bucket.first, groups_.choose(of_stage, bucket.bytes), &of_stage});
    }
  }
  for (const SharedParameters* const shared : stages_.shared(*partition_, bytes)) {
    StepBucket& bucket = add_shared(*shared);
    bucket.algorithm = groups_.choose(*bucket.group, bucket.bytes);
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
    for (std::int64_t i = 0; i < own.tensors && own.shared == nullptr; ++i) {
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
