// SPDX-License-Identifier: Apache-2.0
// StepReplicas: the replicas of a strategy's stages for the evaluator, what they divide among them,
// and the memory that each takes.
#pragma once

#include "ir/strategy/memory.h"
#include "ir/strategy/state_parts.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/evaluate/step/teams.h"
#include "planner/problem/problem.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace agpcs {

/// Replicas of a stage with equal devices and equal shares, or a member of a team.
struct EqualReplicas {
  int stage = 0, kind = 0;
  std::int64_t samples = 0;
  bool odd = false;               ///< takes a sample less of smaller micro-batches
  std::int64_t others = 0;        ///< elements of the stage's buckets that other replicas own
  std::int64_t others_bytes = 0;  ///< of what is divided of them, on devices
  std::int64_t others_state =
      0;             ///< of the optimizer's state of them, where it is in hosts' memory
  int team = kNone;  ///< the replica that is a team; kNone: replicas are devices
  int member = 0;    ///< its number there
};

/// Refers to `problem`, `stages` and `teams`.
class StepReplicas {
 public:
  StepReplicas(const Problem& problem, StageTable& stages, TeamTable& teams)
      : problem_(problem), stages_(stages), teams_(teams) {}

  /// Finds the replicas. `teams`: by stage; nullptr: it has none. What it refers to must live on.
  void load(const Strategy& strategy, const PartitionInfo& partition,
            const std::vector<TeamInfo*>& teams);
  /// Does so for questions about memory. `programs`: by stage.
  void load(const Strategy& strategy, const PartitionInfo& partition,
            const std::vector<TeamInfo*>& teams, const std::vector<ProgramMemory>& programs);
  /// Divides each bucket that has no parts of its own, of the stages that divide their state, by
  /// the memory that their devices have left, as `lower` does. Counts for each replica what others
  /// own, and finds where passes need parameters that are divided. Needs: loaded with programs.
  void divide(std::vector<StepBucket>& buckets);

  /// Returns the replicas, by stage.
  const std::vector<EqualReplicas>& equals() const { return equals_; }
  /// Returns the index in `equals` of a replica; of teams, of the place of a member.
  int index_of(int stage, std::size_t replica) const;
  /// Returns the stage's odd replica; past the last if there is none.
  std::size_t odd_of(int stage) const;

  /// What follows needs: loaded with programs.
  /// Returns what the replicas of a stage divide.
  const DividedState& divided_of(int stage) const;
  /// Returns where backward passes of a stage need parameters that are divided, by index of bucket.
  /// Needs: buckets are divided.
  const std::vector<BucketUse>& uses_of(int stage) const {
    return uses_[static_cast<std::size_t>(stage)];
  }
  /// Returns the peak of a replica with these samples, without what the stage divides; of a team,
  /// that of the member that needs most.
  std::int64_t undivided_peak(int stage, std::int64_t samples, const Recomputation& recompute);
  /// Returns the most bytes that a replica needs beyond what its device has, or the replicas of a
  /// host, beyond what that has for their state.
  std::int64_t most_lacking();

 private:
  const StageSpec& spec(int stage) const {
    return strategy_->stages[static_cast<std::size_t>(stage)];
  }
  StageInfo& info(int stage) const { return *partition_->stages[static_cast<std::size_t>(stage)]; }
  int stage_count() const { return static_cast<int>(strategy_->stages.size()); }
  EqualReplicas& equals_of(int stage, std::size_t replica);
  Unsummed* find_unsummed(int stage, const Recomputation& recompute, Unsummed& own);
  Unsummed make_unsummed(int stage, const Recomputation& recompute);
  void fill(int stage, const StageInfo::Parameter& parameter);
  StageMemory memory_with(Unsummed* unsummed, int stage, std::int64_t samples,
                          const Recomputation& recompute);
  void find_uses(std::vector<StepBucket>& buckets);
  void divide(int stage);
  struct Elsewhere {
    std::int64_t bytes = 0, state = 0;  // as in EqualReplicas
  };
  StageMemory memory_of(int stage, std::int64_t samples, const Recomputation& recompute,
                        const Elsewhere& elsewhere);
  std::int64_t peak(int stage, std::int64_t samples, const Recomputation& recompute,
                    const Elsewhere& elsewhere);
  std::int64_t most_lacking_of_hosts();
  std::int64_t peak(const EqualReplicas& equal);
  std::int64_t peak_of_rank(int stage, std::int64_t samples, const Recomputation& recompute);
  std::int64_t member_peak(int stage, std::size_t member, std::int64_t samples);
  void load_teams(int stage);

  const Problem& problem_;
  StageTable& stages_;
  TeamTable& teams_;
  const Strategy* strategy_ = nullptr;
  const PartitionInfo* partition_ = nullptr;
  const std::vector<TeamInfo*>* team_of_stage_ = nullptr;
  const std::vector<ProgramMemory>* programs_ = nullptr;
  std::vector<EqualReplicas> equals_;        // by stage
  std::vector<int> equals_of_;               // by stage, then replica (or member): index in equals_
  std::vector<std::size_t> first_of_stage_;  // by stage: index in equals_of_
  std::vector<std::size_t> odd_;             // by stage
  std::vector<std::vector<std::int64_t>> owned_;  // by stage: elements by replica; empty: all
  std::vector<Unsummed*> unsummed_;               // by stage; nullptr: it holds nothing more
  std::vector<Unsummed> own_;                     // by stage: of buckets that the strategy has
  Unsummed other_;                                // likewise, of another recomputation
  std::vector<std::vector<BucketUse>> uses_;      // by stage
  std::vector<FilledBucket> filled_;              // buckets of a stage
  /// The last replica whose peak was asked for, if it were to own all.
  struct KnownPeak {
    int stage = kNone;
    std::int64_t samples = 0, bytes = 0;
  };
  KnownPeak known_peak_;
};

}  // namespace agpcs
