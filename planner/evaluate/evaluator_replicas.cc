// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator_replicas.h"

#include "ir/base/at.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/offload.h"

#include <algorithm>
#include <limits>

namespace agpcs {

void StepReplicas::load(const Strategy& strategy, const PartitionInfo& partition,
                        const std::vector<TeamInfo*>& teams) {
  strategy_ = &strategy;
  partition_ = &partition;
  team_of_stage_ = &teams;
  equals_.clear();
  equals_of_.clear();
  first_of_stage_.clear();
  odd_.clear();
  const bool equal = problem_.training.batch % strategy.micro_batches == 0;
  for (int stage = 0; stage < stage_count(); ++stage) {
    const std::size_t first = equals_.size();
    first_of_stage_.push_back(equals_of_.size());
    // Replicas that divide state differ by a few elements.
    const bool alike = !divides_state(spec(stage), problem_.training);
    odd_.push_back(equal ? spec(stage).devices.size() : odd_replica(spec(stage)));
    if (teams[at(stage)] != nullptr) {
      load_teams(stage);
      continue;
    }
    for (std::size_t i = 0; i < spec(stage).devices.size(); ++i) {
      const int kind = problem_.cluster.devices[at(spec(stage).devices[i])].kind;
      const std::int64_t samples = spec(stage).shares[i];
      const bool odd = odd_[at(stage)] == i;
      std::size_t found = alike ? first : equals_.size();
      while (found < equals_.size() &&
             (equals_[found].kind != kind || equals_[found].samples != samples ||
              equals_[found].odd != odd)) {
        ++found;
      }
      if (found == equals_.size()) equals_.push_back({stage, kind, samples, odd});
      equals_of_.push_back(static_cast<int>(found));
    }
  }
}

/// Adds the members of a stage's teams: links may tell them apart, so none are equal.
void StepReplicas::load_teams(int stage) {
  for (std::size_t i = 0; i < spec(stage).devices.size(); ++i) {
    int member = 0;
    for (const DeviceId device : members_of(spec(stage), i)) {
      EqualReplicas one = {stage, problem_.cluster.devices[at(device)].kind, spec(stage).shares[i]};
      one.odd = odd_[at(stage)] == i;
      one.team = static_cast<int>(i);
      one.member = member++;
      equals_of_.push_back(static_cast<int>(equals_.size()));
      equals_.push_back(one);
    }
  }
}

void StepReplicas::load(const Strategy& strategy, const PartitionInfo& partition,
                        const std::vector<TeamInfo*>& teams,
                        const std::vector<ProgramMemory>& programs) {
  load(strategy, partition, teams);
  programs_ = &programs;
  known_peak_ = {};
  unsummed_.resize(strategy.stages.size());
  own_.resize(std::max(own_.size(), strategy.stages.size()));
  for (int stage = 0; stage < stage_count(); ++stage) {
    unsummed_[at(stage)] = find_unsummed(stage, spec(stage).recompute, own_[at(stage)]);
  }
}

int StepReplicas::index_of(int stage, std::size_t replica) const {
  return equals_of_[first_of_stage_[at(stage)] + replica];
}

std::size_t StepReplicas::odd_of(int stage) const { return odd_[at(stage)]; }

EqualReplicas& StepReplicas::equals_of(int stage, std::size_t replica) {
  return equals_[at(index_of(stage, replica))];
}

const DividedState& StepReplicas::divided_of(int stage) const {
  const StateLevel level = divided_by(spec(stage), problem_.training);
  const bool in_host = spec(stage).state_in_host;
  const auto [known, added] = info(stage).divided.try_emplace(
      {level, in_host}, problem_.training.optimizer, level, in_host);
  DividedState& state = known->second;
  if (!added) return state;
  for (const StageInfo::Parameter& parameter : info(stage).parameters) {
    state.add(parameter.gradient.elements, parameter.gradient.held, 1);
  }
  return state;
}

/// Returns what a replica of a stage that recomputes so holds of what it divides; nullptr: nothing.
/// Looks it up where the problem says what the buckets are, and else makes it in `own`.
Unsummed* StepReplicas::find_unsummed(int stage, const Recomputation& recompute, Unsummed& own) {
  const StateLevel level = divided_by(spec(stage), problem_.training);
  if (level < StateLevel::kGradients) return nullptr;
  if (!strategy_->buckets.empty()) return &(own = make_unsummed(stage, recompute));
  const auto [known, added] = info(stage).unsummed.try_emplace({level, recompute});
  if (added) {
    known->second = make_unsummed(stage, recompute);
    stages_.remember(sizeof(Unsummed) + filled_.size() * (sizeof(BucketUse) + sizeof(HeldChange)));
  }
  return &known->second;
}

/// Makes that, by the buckets of the stage.
Unsummed StepReplicas::make_unsummed(int stage, const Recomputation& recompute) {
  Unsummed unsummed;
  const StateLevel level = divided_by(spec(stage), problem_.training);
  const bool own = has_own_parts(*strategy_, stage);
  const bool gathers =
      level == StateLevel::kParameters ||
      (own &&
       std::any_of(strategy_->buckets.begin(), strategy_->buckets.end(), [&](const Bucket& bucket) {
         return bucket.stage == stage && bucket.state == StateLevel::kParameters;
       }));
  const auto gather = [&] {
    filled_.back().gather(info(stage).parts.ops, stages_.segment_ends(info(stage), recompute));
  };
  filled_.clear();
  if (strategy_->buckets.empty()) {
    std::size_t next = 0;
    for (const StageInfo::Group& group :
         stages_.filled(info(stage), problem_.options.bucket_bytes)) {
      filled_.emplace_back();
      for (std::int64_t i = 0; i < group.tensors; ++i) fill(stage, info(stage).parameters[next++]);
      if (gathers) gather();
    }
  }
  for (const Bucket& bucket : strategy_->buckets) {
    if (bucket.stage != stage || bucket.is_shared()) continue;
    if (own && bucket.state < StateLevel::kGradients) continue;
    filled_.emplace_back();
    for (const TensorId id : bucket.parameters) fill(stage, stages_.parameter(id));
    if (own ? bucket.state == StateLevel::kParameters : gathers) gather();
  }
  for (const FilledBucket& bucket : filled_) {
    unsummed.rounded_bytes += bucket.rounded_bytes;
    if (gathers) unsummed.needed.push_back(bucket.needed);
  }
  if (gathers) unsummed.uses = backward_uses(filled_);
  unsummed.held = held_in_passes(filled_, unsummed.uses);
  return unsummed;
}

void StepReplicas::fill(int stage, const StageInfo::Parameter& parameter) {
  filled_.back().add(stages_.read_in(info(stage), parameter), parameter.last, parameter.first,
                     parameter.gradient.held_bytes, parameter.gradient.rounded_bytes);
}

/// Finds which of `buckets` passes need where.
void StepReplicas::find_uses(std::vector<StepBucket>& buckets) {
  std::vector<std::vector<int>> indices(at(stage_count()));  // by stage: of what backward fills
  for (StepBucket& bucket : buckets) {
    if (bucket.state < StateLevel::kGradients) continue;
    std::vector<int>& own = indices[at(bucket.stage)];
    if (bucket.state == StateLevel::kParameters) {
      bucket.needed = unsummed_[at(bucket.stage)]->needed[own.size()];
    }
    own.push_back(static_cast<int>(&bucket - buckets.data()));
  }
  uses_.resize(at(stage_count()));
  for (int stage = 0; stage < stage_count(); ++stage) {
    uses_[at(stage)].clear();
    if (unsummed_[at(stage)] == nullptr) continue;
    for (const BucketUse& use : unsummed_[at(stage)]->uses) {
      uses_[at(stage)].push_back({indices[at(stage)][at(use.bucket)], use.filled});
    }
  }
}

/// Divides the state of a stage among its replicas.
void StepReplicas::divide(int stage) {
  const DividedState& state = divided_of(stage);
  const std::size_t replicas = spec(stage).devices.size();
  std::vector<StateOwner> owners;
  for (std::size_t i = 0; i < replicas; ++i) {
    const EqualReplicas& replica = equals_of(stage, i);
    const DeviceKind& kind = problem_.cluster.kinds[at(replica.kind)];
    owners.push_back(state.owner(kind, peak(replica), replicas));
  }
  owned_[at(stage)] = divide_state(state.elements(), owners);
}

void StepReplicas::divide(std::vector<StepBucket>& buckets) {
  owned_.resize(strategy_->stages.size());
  for (int stage = 0; stage < stage_count(); ++stage) {
    owned_[at(stage)].clear();
    if (!divides_state(spec(stage), problem_.training)) continue;
    if (!has_own_parts(*strategy_, stage)) divide(stage);
  }
  for (StepBucket& bucket : buckets) {
    if (bucket.shared == nullptr && !owned_[at(bucket.stage)].empty()) {
      bucket.parts = bucket_parts(bucket.elements, owned_[at(bucket.stage)]);
      bucket.state = divided_by(spec(bucket.stage), problem_.training);
    }
    if (bucket.parts.empty()) continue;
    const std::int64_t each = divided_element_bytes(problem_.training.optimizer, bucket.held,
                                                    bucket.state, spec(bucket.stage).state_in_host);
    const std::int64_t state = state_bytes(problem_.training.optimizer, bucket.held);
    const std::vector<DeviceId>& owners = bucket.group->devices;
    bucket.for_each_stage([&](int stage, int) {
      std::size_t owner = 0;  // both are ascending
      for (std::size_t i = 0; i < spec(stage).devices.size(); ++i) {
        while (owners[owner] != spec(stage).devices[i]) ++owner;
        const std::int64_t others = bucket.elements - bucket.parts[owner];
        EqualReplicas& replica = equals_of(stage, i);
        replica.others += others;
        replica.others_bytes += others * each;
        if (spec(stage).state_in_host) replica.others_state += others * state;
      }
    });
  }
  find_uses(buckets);
}

StageMemory StepReplicas::memory_with(Unsummed* unsummed, int stage, std::int64_t samples,
                                      const Recomputation& recompute) {
  const bool parted = strategy_->schedule == Schedule::kZeroBubble;
  const bool holds = unsummed != nullptr && unsummed->held.summing != 0;
  return stages_.memory(info(stage), spec(stage), {kNone, samples, recompute, parted},
                        strategy_->micro_batches, holds ? unsummed : nullptr);
}

/// Returns the memory of a replica, without what of that which the stage divides is `elsewhere`.
StageMemory StepReplicas::memory_of(int stage, std::int64_t samples, const Recomputation& recompute,
                                    const Elsewhere& elsewhere) {
  const bool other = recompute != spec(stage).recompute;
  Unsummed* const unsummed = other ? find_unsummed(stage, recompute, other_) : unsummed_[at(stage)];
  StageMemory memory = memory_with(unsummed, stage, samples, recompute);
  memory.optimizer -= elsewhere.state;
  if (spec(stage).state_in_host) move_state_to_host(problem_.training, memory);
  memory.optimizer -= elsewhere.bytes;  // with the sums of gradients, and parameters
  if (unsummed != nullptr) memory.gradients += unsummed->held.summing - unsummed->rounded_bytes;
  return memory;
}

std::int64_t StepReplicas::peak(int stage, std::int64_t samples, const Recomputation& recompute,
                                const Elsewhere& elsewhere) {
  return (*programs_)[at(stage)].peak_bytes(memory_of(stage, samples, recompute, elsewhere));
}

std::int64_t StepReplicas::member_peak(int stage, std::size_t member, std::int64_t samples) {
  const bool sums = spec(stage).devices.size() > 1;
  return (*programs_)[at(stage)].peak_bytes(teams_.memory(
      *(*team_of_stage_)[at(stage)], info(stage), member, samples, strategy_->micro_batches, sums));
}

/// Returns the peak of a rank that has stage `stage` and others, which all take as many samples.
std::int64_t StepReplicas::peak_of_rank(int stage, std::int64_t samples,
                                        const Recomputation& recompute) {
  const int round = round_size(*strategy_);
  std::vector<ProgramMemory::Stage> stages;
  for (int own = stage % round; own < stage_count(); own += round) {
    const Recomputation& recomputes = own == stage ? recompute : spec(own).recompute;
    stages.push_back(
        {&(*programs_)[at(own)], memory_with(unsummed_[at(own)], own, samples, recomputes)});
  }
  return ProgramMemory::peak_of(stages).total();
}

std::int64_t StepReplicas::peak(const EqualReplicas& equal) {
  if (strategy_->schedule == Schedule::kInterleaved) {
    return peak_of_rank(equal.stage, equal.samples, spec(equal.stage).recompute);
  }
  if (equal.team != kNone) return member_peak(equal.stage, at(equal.member), equal.samples);
  const Recomputation& recompute = spec(equal.stage).recompute;
  if (spec(equal.stage).state_in_host) {
    return peak(equal.stage, equal.samples, recompute, {equal.others_bytes, equal.others_state});
  }
  // What others own is part of all that a program holds at any time.
  if (known_peak_.stage != equal.stage || known_peak_.samples != equal.samples) {
    const std::int64_t bytes = peak(equal.stage, equal.samples, recompute, {});
    known_peak_ = {equal.stage, equal.samples, bytes};
  }
  return known_peak_.bytes - equal.others_bytes;
}

std::int64_t StepReplicas::undivided_peak(int stage, std::int64_t samples,
                                          const Recomputation& recompute) {
  const TeamInfo* const team = (*team_of_stage_)[at(stage)];
  if (strategy_->schedule == Schedule::kInterleaved) {
    return peak_of_rank(stage, samples, recompute);
  }
  if (team == nullptr) return peak(stage, samples, recompute, {divided_of(stage).bytes(), 0});
  std::int64_t most = 0;
  for (std::size_t m = 0; m < team->work.members(); ++m) {
    most = std::max(most, member_peak(stage, m, samples));
  }
  return most;
}

std::int64_t StepReplicas::most_lacking() {
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  const int round = round_size(*strategy_);
  for (const EqualReplicas& equal : equals_) {
    if (equal.stage >= round) break;  // ranks of earlier stages
    most = std::max(most, peak(equal) - problem_.cluster.kinds[at(equal.kind)].memory_bytes);
  }
  return std::max(most, most_lacking_of_hosts());
}

std::int64_t StepReplicas::most_lacking_of_hosts() {
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  std::map<int, std::int64_t> needs;  // by host
  for (int stage = 0; stage < stage_count(); ++stage) {
    if (!spec(stage).state_in_host && !spec(stage).recompute.in_host) continue;
    for (std::size_t i = 0; i < spec(stage).devices.size(); ++i) {
      const EqualReplicas& equal = equals_of(stage, i);
      const int host = problem_.cluster.devices[at(spec(stage).devices[i])].host;
      const StageMemory memory = memory_of(stage, equal.samples, spec(stage).recompute,
                                           {equal.others_bytes, equal.others_state});
      const std::int64_t bytes = (*programs_)[at(stage)].host_bytes(memory);
      if (bytes > 0) needs[host] += bytes;
    }
  }
  for (const auto& [host, bytes] : needs) {
    most = std::max(most, bytes - problem_.cluster.hosts[at(host)].memory_bytes);
  }
  return most;
}

}  // namespace agpcs
