// SPDX-License-Identifier: Apache-2.0
// StepChannels: the transfers between the ranks of a step, for the evaluator.
#pragma once

#include "cost_model/step/flat_step.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator_groups.h"
#include "planner/evaluate/evaluator_replicas.h"
#include "planner/evaluate/evaluator_stages.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Refers to all that it is made of.
class StepChannels {
 public:
  StepChannels(GroupTable& groups, const StepReplicas& replicas)
      : groups_(groups), replicas_(replicas) {}

  /// Adds the channels of all cuts for the larger or the smaller micro-batches: those of
  /// `transfers`, summed over the tensors. Needs: the ranks of `step`, and the replicas of
  /// `strategy` are loaded. `numbers`: ranks by device.
  void add(const Strategy& strategy, const PartitionInfo& partition,
           const std::vector<int>& numbers, bool smaller, FlatStep& step);

 private:
  template <typename F>
  void for_each_transfer(int from, int to, const CutBytes& bytes, bool forward, F f) const;
  void add_channels(int from, int to, const CutBytes& bytes, bool forward);
  void add_no_channels(const CutInfo& cut);
  void add_team_channels(int from, int to, const CutBytes& bytes, bool forward);
  void add_channel(DeviceId from, DeviceId to, std::int64_t bytes);
  std::int64_t samples_of(int stage, std::size_t replica) const;
  int places_of(int stage) const;
  const StageSpec& spec(int stage) const {
    return strategy_->stages[static_cast<std::size_t>(stage)];
  }

  GroupTable& groups_;
  const StepReplicas& replicas_;
  // Of the current strategy.
  const Strategy* strategy_ = nullptr;
  const std::vector<int>* numbers_ = nullptr;
  bool smaller_ = false;
  FlatStep* step_ = nullptr;
};

}  // namespace agpcs
