// SPDX-License-Identifier: Apache-2.0
// RankSeconds: the seconds of computations in a step, for the evaluator.
#pragma once

#include "cost_model/step/flat_step.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/evaluator_replicas.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/evaluate/step/teams.h"
#include "planner/problem/problem.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Refers to all that it is made of.
class RankSeconds {
 public:
  RankSeconds(const Problem& problem, StageTable& stages, TeamTable& teams,
              const StepReplicas& replicas, const StepBuckets& buckets)
      : problem_(problem), stages_(stages), teams_(teams), replicas_(replicas), buckets_(buckets) {}

  /// Adds the times of `StepReplicas::equals` to `step`, equal to the last bit to those of
  /// `make_step_model`. Needs: replicas and buckets of `strategy` are loaded. `team_of_stage`:
  /// nullptr where replicas are devices.
  void add(const Strategy& strategy, const PartitionInfo& partition,
           const std::vector<TeamInfo*>& team_of_stage, FlatStep& step);

 private:
  void add_member(const EqualReplicas& equal);
  void load_teams(int stage);
  void add_needs(const EqualReplicas& equal);
  const StageSpec& spec(int stage) const {
    return strategy_->stages[static_cast<std::size_t>(stage)];
  }
  StageInfo& info(int stage) const { return *partition_->stages[static_cast<std::size_t>(stage)]; }

  const Problem& problem_;
  StageTable& stages_;
  TeamTable& teams_;
  const StepReplicas& replicas_;
  const StepBuckets& buckets_;
  // Of the current strategy.
  const Strategy* strategy_ = nullptr;
  const PartitionInfo* partition_ = nullptr;
  const std::vector<TeamInfo*>* team_of_stage_ = nullptr;
  FlatStep* step_ = nullptr;
  bool scatters_ = false, gathers_ = false;       // gradients, or parameters, are divided
  std::vector<std::int64_t> elements_, tensors_;  // trained, by first stage of ranks
  // Of the current stage with teams, by team.
  std::vector<TeamPlace> places_;
  std::vector<bool> apart_;  // no other team of its stage is beside it
};

}  // namespace agpcs
