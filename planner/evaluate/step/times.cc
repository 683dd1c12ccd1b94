// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step/times.h"

#include "ir/base/at.h"
#include "ir/strategy/interleaved.h"

#include <algorithm>

namespace agpcs {

void RankSeconds::add(const Strategy& strategy, const PartitionInfo& partition,
                      const std::vector<TeamInfo*>& team_of_stage, FlatStep& step) {
  strategy_ = &strategy;
  partition_ = &partition;
  team_of_stage_ = &team_of_stage;
  step_ = &step;
  const bool parted = strategy.schedule == Schedule::kZeroBubble;
  elements_.assign(strategy.stages.size(), 0);
  tensors_.assign(strategy.stages.size(), 0);
  scatters_ = gathers_ = false;
  const auto round = static_cast<std::size_t>(round_size(strategy));
  for (const StepBucket& bucket : buckets_.all()) {
    scatters_ = scatters_ || bucket.state >= StateLevel::kGradients;
    gathers_ = gathers_ || bucket.state == StateLevel::kParameters;
    bucket.for_each_stage([&](int stage, int) {
      elements_[at(stage) % round] += bucket.elements;
      tensors_[at(stage) % round] += bucket.tensors;
    });
  }
  for (const EqualReplicas& equal : replicas_.equals()) {
    if (equal.team != kNone) {
      add_member(equal);
      continue;
    }
    ReplicaKey replica = {equal.kind, equal.samples, spec(equal.stage).recompute, parted};
    const StageSeconds& seconds = stages_.seconds(info(equal.stage), replica);
    if (equal.odd) --replica.samples;
    const StageSeconds& smaller = stages_.seconds(info(equal.stage), replica);
    const std::size_t rank = at(equal.stage) % round;
    const std::int64_t elements = elements_[rank];
    step_->times.push_back(
        {problem_.costs.begin_seconds(equal.kind, elements), seconds.forward, seconds.backward,
         problem_.costs.update_seconds(equal.kind, elements - equal.others, tensors_[rank],
                                       spec(equal.stage).state_in_host),
         smaller.forward, smaller.backward, seconds.weight, smaller.weight});
    for (const StepBucket& bucket : buckets_.all()) {
      step_->gradients.push_back(0);
      if (scatters_) step_->larger_gradients.push_back(0);
      bucket.for_each_stage([&](int stage, int first) {
        if (stage != equal.stage) return;
        step_->gradients.back() = smaller.gradients[at(first)];
        if (scatters_) step_->larger_gradients.back() = seconds.gradients[at(first)];
      });
    }
    if (gathers_) add_needs(equal);
  }
}

/// Finds out which of a stage's teams have others beside them.
void RankSeconds::load_teams(int stage) {
  places_ = places_of_teams(spec(stage));
  apart_.assign(places_.size(), true);
  if (strategy_->stages.size() > 1) return;  // where it does not matter
  const auto beside = teams_beside(problem_.cluster, places_);
  for (std::size_t t = 0; t < places_.size(); ++t) apart_[t] = beside[t].empty();
}

/// Adds those of a member of a team, with its first member the team's script.
void RankSeconds::add_member(const EqualReplicas& equal) {
  TeamInfo& team = *(*team_of_stage_)[at(equal.stage)];
  const std::size_t m = at(equal.member);
  if (equal.team == 0 && equal.member == 0) load_teams(equal.stage);
  TeamPlace place = places_[at(equal.team)];
  const bool alone = is_alone_on_links(strategy_->stages.size(), apart_[at(equal.team)]);
  const TeamScript& larger = teams_.script(team, place, alone);
  if (equal.odd) --place.samples;
  const TeamScript& smaller = equal.odd ? teams_.script(team, place, alone) : larger;
  if (m == 0) step_->add_team(larger, smaller);
  FlatTimes times;
  times.forward = larger.forward.least;
  times.backward = larger.backward.least;
  times.smaller_forward = smaller.forward.least;
  times.smaller_backward = smaller.backward.least;
  times.step_end = larger.step_end.least;
  std::int64_t elements = 0, tensors = 0;
  for (const StepBucket& bucket : buckets_.all()) {
    const bool own = bucket.stage == equal.stage;
    if (own) {
      elements += bucket.members[m].elements;
      tensors += bucket.tensors;
    }
    step_->gradients.push_back(own ? times.last_backward() : 0);
    if (scatters_) step_->larger_gradients.push_back(own ? times.backward + times.step_end : 0);
  }
  times.begin = problem_.costs.begin_seconds(equal.kind, elements);
  times.update = problem_.costs.update_seconds(equal.kind, elements, tensors);
  step_->times.push_back(times);
  if (gathers_) step_->needs.resize(step_->needs.size() + kNeedTimes * buckets_.all().size());
}

/// Adds when passes of a replica need parameters that are divided.
void RankSeconds::add_needs(const EqualReplicas& equal) {
  const std::size_t buckets = buckets_.all().size(), row = step_->needs.size();
  step_->needs.resize(row + kNeedTimes * buckets);
  for (const bool larger : {false, true}) {
    const std::int64_t samples = equal.samples - (equal.odd && !larger ? 1 : 0);
    StageInfo& stage = info(equal.stage);
    const StageNeeds* needs = nullptr;
    for (std::size_t b = 0; b < buckets; ++b) {
      const StepBucket& bucket = buckets_.all()[b];
      if (bucket.stage != equal.stage || bucket.state != StateLevel::kParameters) continue;
      if (needs == nullptr) {
        needs = &stages_.needs(stage, {equal.kind, samples, spec(equal.stage).recompute});
      }
      const auto place_of = [&](OpId op) {
        const std::vector<OpId>& ops = stage.parts.ops;
        return static_cast<std::size_t>(std::lower_bound(ops.begin(), ops.end(), op) - ops.begin());
      };
      step_->needs[row + need_times(true, larger) * buckets + b] =
          needs->forward[place_of(stage.firsts[at(bucket.first)])];
      step_->needs[row + need_times(false, larger) * buckets + b] =
          needs->backward[place_of(bucket.needed)];
    }
  }
}

}  // namespace agpcs
