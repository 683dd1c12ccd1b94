// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator.h"

#include "cost_model/step/engine.h"
#include "cost_model/step/flat_step.h"
#include "cost_model/step/simulator.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/state_parts.h"
#include "ir/strategy/teams.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/evaluator_groups.h"
#include "planner/evaluate/evaluator_programs.h"
#include "planner/evaluate/evaluator_replicas.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/evaluate/step/channels.h"
#include "planner/evaluate/step/teams.h"
#include "planner/evaluate/step/times.h"
#include "planner/evaluate/step_folder.h"
#include "planner/evaluate/step_tails.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {

class Evaluator::Impl {
 public:
  explicit Impl(const Problem& problem)
      : problem_(problem),
        stages_(problem),
        groups_(problem),
        folder_(problem.cluster),
        engine_(problem.cluster),
        rank_of_(problem.cluster.devices.size()) {
    shape_.clips = problem.training.optimizer.clips();
    for (const Device& device : problem.cluster.devices) {
      const DeviceKind& kind = problem.cluster.kinds[at(device.kind)];
      if (kind.overlap.communication_factor > 1) bounds_messages_ = false;
    }
  }

  Score evaluate(const Strategy& strategy) {
    if (has_unlike_teams(strategy)) return score_of_plan(strategy);
    Score score = score_of_step(strategy, StepEngine::kAll);
    score.lacking = divides_ ? replicas_.most_lacking() : lacking(strategy);
    return score;
  }

  Score evaluate_up_to(const Strategy& strategy, double most) {
    if (has_unlike_teams(strategy)) return score_of_plan(strategy);
    const std::int64_t lacking = this->lacking(strategy);
    Score score;
    if (lacking <= 0) score = score_of_step(strategy, most);
    score.lacking = lacking;
    score.whole = score.whole && lacking <= 0;
    return score;
  }

  double seconds_without_sums(const Strategy& strategy, int stage) {
    if (has_unlike_teams(strategy)) return score_of_plan(strategy).step_seconds;
    return run(strategy, [stage](int other) { return stage != kEveryStage && stage != other; });
  }

  std::int64_t lacking(const Strategy& strategy) {
    if (has_unlike_teams(strategy)) return lacking_of_plan(strategy);
    // What a replica owns depends on the buckets.
    divides(strategy) ? load_buckets(strategy) : load_memory(strategy);
    return replicas_.most_lacking();
  }

  std::int64_t divided_bytes(const Strategy& strategy, int stage) {
    load_memory(strategy);
    return replicas_.divided_of(stage).bytes();
  }

  Strategy grouped(Strategy strategy) {
    if (has_unlike_teams(strategy)) {
      if (!strategy.buckets.empty()) return strategy;
      return group_gradients(problem_, std::move(strategy), problem_.options.bucket_bytes);
    }
    load_buckets(strategy);
    strategy.buckets = buckets_.of_strategy();
    return strategy;
  }

  std::int64_t replica_bytes(const Strategy& strategy, int stage, std::int64_t samples,
                             const Recomputation& recompute) {
    load_memory(strategy);
    return replicas_.undivided_peak(stage, samples, recompute);
  }

  double copy_waits(const Strategy& strategy, int stage, int kind, std::int64_t samples,
                    const Recomputation& recompute) {
    if (!recompute.in_host) return 0;
    load_memory(strategy);
    StageInfo& info = *partition_->stages[at(stage)];
    ReplicaKey key{kind, samples, recompute};
    const double with = stages_.seconds(info, key).sum();
    key.recompute.in_host = false;
    if (!recompute.again) key.recompute = {};
    return with - stages_.seconds(info, key).sum();
  }

 private:
  /// Returns the plan of a strategy with unlike teams, of which nothing but the memory of the last
  /// one is looked up. Searches ask for few of them.
  Plan plan_of_unlike(const Strategy& strategy, Strategy& grouped) const {
    grouped = strategy;
    Result<Plan> plan = plan_of(problem_, grouped, {});
    AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
    return *std::move(plan);
  }

  std::int64_t lacking_of_plan(const Strategy& strategy) {
    if (last_unlike_ && last_unlike_->first == strategy) return last_unlike_->second;
    Strategy grouped;
    const Plan plan = plan_of_unlike(strategy, grouped);
    const std::int64_t lacking = memory_fit(problem_, grouped, plan, memory_of(plan)).lacking();
    last_unlike_.emplace(strategy, lacking);
    return lacking;
  }

  std::vector<MemoryUse> memory_of(const Plan& plan) const {
    Result<std::vector<MemoryUse>> uses = peak_memory(plan, problem_.graph);
    AGPCS_CHECK(uses.ok(), "{}", uses.status().message());
    return *std::move(uses);
  }

  /// Returns the score by the simulator itself.
  Score score_of_plan(const Strategy& strategy) const {
    Strategy grouped;
    const Plan plan = plan_of_unlike(strategy, grouped);
    const std::vector<MemoryUse> uses = memory_of(plan);
    const Result<Estimate> estimate =
        simulate(plan, problem_.graph, problem_.cluster, problem_.costs, {.memory = &uses});
    AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
    Score score;
    score.step_seconds = estimate->step_seconds;
    for (const DeviceEstimate& device : estimate->devices) {
      score.exposed_communication += device.exposed_communication;
    }
    score.lacking = memory_fit(problem_, grouped, plan, uses).lacking();
    return score;
  }

  /// Returns the score without memory.
  Score score_of_step(const Strategy& strategy, double most) {
    Score score;
    score.step_seconds = run(
        strategy, [](int) { return true; }, most);
    score.whole = score.step_seconds <= most;
    if (!score.whole) return score;
    for (int rank = 0; rank < static_cast<int>(step_.ranks.size()); ++rank) {
      const RankRun& run = engine_.result().ranks[at(folder_.rank_of(rank))];
      score.exposed_communication += run.exposed_communication;
    }
    return score;
  }

  /// Runs the step and returns its seconds; if they are more than `most`, it may return fewer that
  /// are more than `most`, too. The all-reduces of a stage take time if `takes_time(stage)`.
  template <typename F>
  double run(const Strategy& strategy, F takes_time, double most = StepEngine::kAll) {
    load(strategy);
    step_.clear();
    step_.micro_batches = static_cast<int>(strategy.micro_batches);
    step_.round = shape_.round;
    step_.rounds = stage_count() / shape_.round;
    add_ranks();
    times_.add(strategy, *partition_, team_of_stage_, step_);
    const std::int64_t larger = problem_.training.batch % strategy.micro_batches;
    step_.smaller_from = larger == 0 ? step_.micro_batches : static_cast<int>(larger);
    add_collectives(takes_time);
    if (most < StepEngine::kAll && !shape_.interleaves && bounds_messages_) {
      const double least = add_tails(problem_.cluster, strategy, *partition_, replicas_,
                                     buckets_.all(), parted(), step_);
      if (least > most * (1 + 1e-9)) return least;
    }
    channels_.add(strategy, *partition_, numbers_, false, step_);
    if (larger != 0) channels_.add(strategy, *partition_, numbers_, true, step_);
    const bool finished = engine_.run(folder_.fold(step_), {}, most);
    AGPCS_CHECK(finished, "the programs of codegen wait for each other");
    return engine_.result().seconds;
  }

  const StageSpec& spec(int stage) const { return strategy_->stages[at(stage)]; }
  StageInfo& info(int stage) const { return *partition_->stages[at(stage)]; }
  int stage_count() const { return static_cast<int>(strategy_->stages.size()); }
  bool parted() const { return strategy_->schedule == Schedule::kZeroBubble; }

  /// Returns whether a stage divides its state.
  bool divides(const Strategy& strategy) const {
    return std::any_of(
               strategy.stages.begin(), strategy.stages.end(),
               [&](const StageSpec& spec) { return divides_state(spec, problem_.training); }) ||
           std::any_of(strategy.buckets.begin(), strategy.buckets.end(),
                       [](const Bucket& bucket) { return !bucket.parts.empty(); });
  }

  /// Looks up everything that does not depend on shares.
  void load(const Strategy& strategy) {
    load_buckets(strategy);
    programs_ = &program_table_.find(shape_).programs;
  }

  /// Does so but for the programs of the step, which take longest.
  void load_buckets(const Strategy& strategy) {
    divides_ = divides(strategy);
    divides_ ? load_memory(strategy)  // which says how they divide it
             : load_partition(strategy);
    if (groups_.forget_if_many()) {
      group_of_stage_.clear();
      everybody_ = nullptr;
    }
    group_of_stage_.resize(strategy.stages.size(), nullptr);
    shape_.alone.clear();
    for (int stage = 0; stage < stage_count(); ++stage) {
      GroupInfo*& group = group_of_stage_[at(stage)];
      group = groups_.find(spec(stage).devices, group);
      shape_.alone.push_back(spec(stage).devices.size() == 1);
    }
    load_further_groups();
    buckets_.load(strategy, *partition_, group_of_stage_, team_of_stage_);
    shape_.set_passes(strategy, partition_->cuts);
    shape_.uses.clear();
    if (divides_) {
      replicas_.divide(buckets_.all());
      for (int stage = 0; stage < stage_count(); ++stage) {
        shape_.uses.push_back(replicas_.uses_of(stage));
      }
    } else {
      replicas_.load(strategy, *partition_, team_of_stage_);
    }
    buckets_.write(shape_);
  }

  /// Finds the groups with which further members of teams sum gradients.
  void load_further_groups() {
    further_groups_.clear();
    if (strategy_->bodies.empty()) return;
    further_groups_.resize(at(stage_count()));
    for (int stage = 0; stage < stage_count(); ++stage) {
      if (!spec(stage).has_teams()) continue;
      for (std::size_t m = 0; m < spec(stage).further[0].size(); ++m) {
        std::vector<DeviceId> devices;
        for (const std::vector<DeviceId>& further : spec(stage).further) {
          devices.push_back(further[m]);
        }
        std::sort(devices.begin(), devices.end());
        further_groups_[at(stage)].push_back(groups_.find(devices, nullptr));
      }
    }
  }

  void load_partition(const Strategy& strategy) {
    need_no_unlike_teams(strategy, "the tables of the evaluator");
    strategy_ = &strategy;
    partition_ =
        &stages_.partition(strategy.stage_of, strategy.stages.size(), round_size(strategy));
    team_of_stage_.assign(strategy.stages.size(), nullptr);
    for (int stage = 0; stage < stage_count() && !strategy.bodies.empty(); ++stage) {
      if (!spec(stage).has_teams()) continue;
      team_of_stage_[at(stage)] = &teams_.find(info(stage), strategy.bodies[at(spec(stage).body)]);
    }
  }

  /// Loads what `most_lacking` needs. A program's memory does not depend on its buckets.
  void load_memory(const Strategy& strategy) {
    load_partition(strategy);
    shape_.alone.assign(strategy.stages.size(), true);
    shape_.set_passes(strategy, partition_->cuts);
    shape_.bucket_stage.clear();
    shape_.states.clear();
    shape_.uses.clear();
    shape_.sharers.clear();
    replicas_.load(strategy, *partition_, team_of_stage_, memory_table_.find(shape_).memory);
  }

  /// Sets the ranks, which follow the order of devices, as in `lower`.
  void add_ranks() {
    std::fill(rank_of_.begin(), rank_of_.end(), FlatRank());
    for (int stage = 0; stage < shape_.round; ++stage) {
      const std::vector<DeviceId>& devices = spec(stage).devices;
      for (std::size_t i = 0; i < devices.size() && !spec(stage).has_teams(); ++i) {
        rank_of_[at(devices[i])] = {&(*programs_)[at(stage)], stage, static_cast<int>(i),
                                    devices[i], replicas_.index_of(stage, i)};
      }
      if (spec(stage).has_teams()) add_members(stage);
    }
    used_.clear();
    for (const FlatRank& rank : rank_of_) {
      if (rank.program == nullptr) continue;
      numbers_.resize(std::max(numbers_.size(), at(rank.device) + 1));
      numbers_[at(rank.device)] = static_cast<int>(step_.ranks.size());
      step_.ranks.push_back(rank);
      used_.push_back(rank.device);
    }
    step_.group_first.push_back(0);
    for (int stage = 0; stage < stage_count(); ++stage) add_group(spec(stage).devices);
    for (const StepBucket& bucket : buckets_.all()) {
      int group = bucket.stage;
      if (bucket.shared != nullptr) {
        add_group(bucket.group->devices);
        group = static_cast<int>(step_.group_first.size()) - 2;
      }
      step_.group_of_bucket.push_back(group);
    }
    if (!strategy_->bodies.empty()) add_teams();
  }

  /// Sets the ranks of a stage's teams, without their numbers.
  void add_members(int stage) {
    std::size_t place = 0;
    for (std::size_t i = 0; i < spec(stage).devices.size(); ++i) {
      int member = 0;
      for (const DeviceId device : members_of(spec(stage), i)) {
        rank_of_[at(device)] = {&(*programs_)[at(stage)],
                                stage,
                                static_cast<int>(place),
                                device,
                                replicas_.index_of(stage, place),
                                static_cast<int>(i),
                                member++};
        ++place;
      }
    }
  }

  /// Adds teams, and the groups in which further members sum buckets.
  void add_teams() {
    step_.team_first.push_back(0);
    for (int stage = 0; stage < stage_count(); ++stage) {
      if (!spec(stage).has_teams()) continue;
      for (std::size_t i = 0; i < spec(stage).devices.size(); ++i) {
        const auto team = static_cast<int>(step_.team_first.size()) - 1;
        for (const DeviceId device : members_of(spec(stage), i)) {
          step_.team_ranks.push_back(numbers_[at(device)]);
          step_.ranks[at(numbers_[at(device)])].team = team;
        }
        step_.team_first.push_back(static_cast<int>(step_.team_ranks.size()));
      }
    }
    for (const StepBucket& bucket : buckets_.all()) {
      step_.further_first.push_back(static_cast<int>(step_.group_of_further.size()));
      for (const GroupInfo* const group : further_groups_[at(bucket.stage)]) {
        step_.group_of_further.push_back(static_cast<int>(step_.group_first.size()) - 1);
        add_group(group->devices);
      }
    }
  }

  void add_group(const std::vector<DeviceId>& devices) {
    for (const DeviceId device : devices) step_.group_members.push_back(numbers_[at(device)]);
    step_.group_first.push_back(static_cast<int>(step_.group_members.size()));
  }

  /// Returns the bytes of the parts of a bucket that travel as `type`.
  const std::vector<std::int64_t>& part_bytes(const StepBucket& bucket, DType type) {
    part_bytes_ = bucket.parts;
    for (std::int64_t& part : part_bytes_) part *= static_cast<std::int64_t>(size_of(type));
    return part_bytes_;
  }

  /// Returns the bytes of a bucket that its stage's devices sum, or the first members of teams.
  static std::int64_t bytes_of_first(const StepBucket& bucket) {
    return bucket.members.empty() ? bucket.bytes : bucket.members[0].bytes;
  }

  template <typename F>
  void add_collectives(F takes_time) {
    static const Exchange kNothing;
    const std::optional<DType> wire = problem_.training.wire_type;
    for (const StepBucket& bucket : buckets_.all()) {
      GroupInfo& group = *bucket.group;
      const bool alone = group.devices.size() < 2;
      const bool takes = bucket.shared != nullptr || takes_time(bucket.stage);
      step_.collectives.push_back(
          alone || !takes ? &kNothing
          : !bucket.parts.empty()
              ? groups_.reduce_scatter_of(group, bucket.algorithm,
                                          part_bytes(bucket, travelling_type(bucket.held, wire)))
          : bucket.flow != nullptr
              ? groups_.flow_of(group, *bucket.flow, bucket.bytes)
              : groups_.all_reduce_of(group, bucket.algorithm, bytes_of_first(bucket)));
    }
    everybody_ = groups_.find(used_, everybody_);
    step_.collectives.push_back(groups_.report_of(*everybody_));
    const bool clips = problem_.training.optimizer.clips();
    step_.collectives.push_back(clips ? groups_.norm_of(*everybody_) : &kNothing);
    for (const StepBucket& bucket : buckets_.all()) {
      if (!divides_ && strategy_->bodies.empty()) break;
      const bool takes = bucket.shared != nullptr || takes_time(bucket.stage);
      step_.collectives.push_back(bucket.parts.empty() || !takes
                                      ? &kNothing
                                      : groups_.all_gather_of(*bucket.group, bucket.algorithm,
                                                              part_bytes(bucket, bucket.held)));
    }
    for (const StepBucket& bucket : buckets_.all()) {
      for (std::size_t m = 1; m < bucket.members.size(); ++m) {
        GroupInfo& group = *further_groups_[at(bucket.stage)][m - 1];
        step_.collectives.push_back(
            group.devices.size() < 2 || !takes_time(bucket.stage)
                ? &kNothing
                : groups_.all_reduce_of(group, bucket.algorithm, bucket.members[m].bytes));
      }
    }
  }

  const Problem& problem_;
  StageTable stages_;
  TeamTable teams_{problem_, stages_};
  GroupTable groups_;
  StepBuckets buckets_{problem_, stages_, teams_, groups_};
  StepReplicas replicas_{problem_, stages_, teams_};
  RankSeconds times_{problem_, stages_, teams_, replicas_, buckets_};
  StepChannels channels_{groups_, replicas_};
  ProgramTable program_table_{ProgramTable::Of::kStep};
  ProgramTable memory_table_{ProgramTable::Of::kMemory};
  StepFolder folder_;
  StepEngine engine_;
  FlatStep step_;
  /// The last strategy with unlike teams of whose memory was asked, and what it lacks.
  std::optional<std::pair<Strategy, std::int64_t>> last_unlike_;

  // These describe the current strategy.
  const Strategy* strategy_ = nullptr;
  const PartitionInfo* partition_ = nullptr;
  const std::vector<PrecedenceGraph>* programs_ = nullptr;
  PipelineShape shape_;
  std::vector<TeamInfo*> team_of_stage_;  // nullptr: its replicas are devices
  std::vector<GroupInfo*> group_of_stage_;
  std::vector<std::vector<GroupInfo*>> further_groups_;  // by stage and further member of teams
  GroupInfo* everybody_ = nullptr;
  std::vector<std::int64_t> part_bytes_;
  bool divides_ = false;  // a stage divides its state
  /// Whether what messages take alone bounds what they take: not where ports are faster while
  /// devices compute.
  bool bounds_messages_ = true;
  std::vector<FlatRank> rank_of_;  // by device
  std::vector<int> numbers_;       // rank by device
  std::vector<DeviceId> used_;     // devices, by rank
};

Evaluator::Evaluator(const Problem& problem) : impl_(std::make_unique<Impl>(problem)) {}
Evaluator::~Evaluator() = default;
Evaluator::Evaluator(Evaluator&&) noexcept = default;
Evaluator& Evaluator::operator=(Evaluator&&) noexcept = default;

Score Evaluator::evaluate(const Strategy& strategy) { return impl_->evaluate(strategy); }
Score Evaluator::evaluate_up_to(const Strategy& strategy, double most) {
  return impl_->evaluate_up_to(strategy, most);
}
std::int64_t Evaluator::lacking(const Strategy& strategy) { return impl_->lacking(strategy); }
double Evaluator::seconds_without_sums(const Strategy& strategy, int stage) {
  return impl_->seconds_without_sums(strategy, stage);
}
Strategy Evaluator::grouped(Strategy strategy) { return impl_->grouped(std::move(strategy)); }
std::int64_t Evaluator::divided_bytes(const Strategy& strategy, int stage) {
  return impl_->divided_bytes(strategy, stage);
}
double Evaluator::copy_waits(const Strategy& strategy, int stage, int kind, std::int64_t samples,
                             const Recomputation& recompute) {
  return impl_->copy_waits(strategy, stage, kind, samples, recompute);
}
std::int64_t Evaluator::replica_bytes(const Strategy& strategy, int stage, std::int64_t samples,
                                      const Recomputation& recompute) {
  return impl_->replica_bytes(strategy, stage, samples, recompute);
}

}  // namespace agpcs
