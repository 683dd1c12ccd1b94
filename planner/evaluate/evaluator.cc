// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator.h"

#include "cost_model/step/engine.h"
#include "cost_model/step/flat_step.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/strategy/state_parts.h"
#include "ir/strategy/teams.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/evaluator_groups.h"
#include "planner/evaluate/evaluator_programs.h"
#include "planner/evaluate/evaluator_replicas.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/evaluate/step_folder.h"
#include "planner/evaluate/step_tails.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {

namespace {

constexpr const char* kMe = "the evaluator";

}  // namespace

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
  }

  Score evaluate(const Strategy& strategy) {
    Score score = score_of_step(strategy, StepEngine::kAll);
    score.lacking = divides_ ? replicas_.most_lacking() : lacking(strategy);
    return score;
  }

  Score evaluate_up_to(const Strategy& strategy, double most) {
    const std::int64_t lacking = this->lacking(strategy);
    Score score;
    if (lacking <= 0) score = score_of_step(strategy, most);
    score.lacking = lacking;
    score.whole = score.whole && lacking <= 0;
    return score;
  }

  double seconds_without_sums(const Strategy& strategy, int stage) {
    return run(strategy, [stage](int other) { return stage != kEveryStage && stage != other; });
  }

  std::int64_t lacking(const Strategy& strategy) {
    need_no_teams(strategy, kMe);
    // What a replica owns depends on the buckets.
    divides(strategy) ? load_buckets(strategy) : load_memory(strategy);
    return replicas_.most_lacking();
  }

  std::int64_t divided_bytes(const Strategy& strategy, int stage) {
    need_no_teams(strategy, kMe);
    load_memory(strategy);
    return replicas_.divided_of(stage).bytes();
  }

  Strategy grouped(Strategy strategy) {
    need_no_teams(strategy, kMe);
    load_buckets(strategy);
    strategy.buckets = buckets_.of_strategy();
    return strategy;
  }

  std::int64_t replica_bytes(const Strategy& strategy, int stage, std::int64_t samples,
                             const Recomputation& recompute) {
    need_no_teams(strategy, kMe);
    load_memory(strategy);
    return replicas_.undivided_peak(stage, samples, recompute);
  }

 private:
  /// Returns the score without memory.
  Score score_of_step(const Strategy& strategy, double most) {
    need_no_teams(strategy, kMe);
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
    add_ranks();
    add_times();
    const std::int64_t larger = problem_.training.batch % strategy.micro_batches;
    step_.smaller_from = larger == 0 ? step_.micro_batches : static_cast<int>(larger);
    add_collectives(takes_time);
    if (most < StepEngine::kAll) {
      const double least = add_tails(problem_.cluster, *partition_, replicas_.equals(),
                                     buckets_.all(), parted(), step_);
      if (least > most * (1 + 1e-9)) return least;
    }
    add_channels(false);
    if (larger != 0) add_channels(true);
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
    buckets_.load(strategy, *partition_, group_of_stage_);
    shape_.set_passes(strategy, partition_->cuts);
    shape_.uses.clear();
    if (divides_) {
      replicas_.divide(buckets_.all());
      for (int stage = 0; stage < stage_count(); ++stage) {
        shape_.uses.push_back(replicas_.uses_of(stage));
      }
    } else {
      replicas_.load(strategy, *partition_);
    }
    buckets_.write(shape_);
  }

  void load_partition(const Strategy& strategy) {
    strategy_ = &strategy;
    partition_ = &stages_.partition(strategy.stage_of, strategy.stages.size());
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
    replicas_.load(strategy, *partition_, memory_table_.find(shape_).memory);
  }

  /// Sets the ranks, which follow the order of devices, as in `lower`.
  void add_ranks() {
    std::fill(rank_of_.begin(), rank_of_.end(), FlatRank());
    for (int stage = 0; stage < stage_count(); ++stage) {
      const std::vector<DeviceId>& devices = spec(stage).devices;
      for (std::size_t i = 0; i < devices.size(); ++i) {
        rank_of_[at(devices[i])] = {&(*programs_)[at(stage)], stage, static_cast<int>(i),
                                    devices[i], replicas_.index_of(stage, i)};
      }
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
  }

  void add_group(const std::vector<DeviceId>& devices) {
    for (const DeviceId device : devices) step_.group_members.push_back(numbers_[at(device)]);
    step_.group_first.push_back(static_cast<int>(step_.group_members.size()));
  }

  void add_times() {
    elements_.assign(at(stage_count()), 0);
    tensors_.assign(at(stage_count()), 0);
    bool scatters = false, gathers = false;
    for (const StepBucket& bucket : buckets_.all()) {
      scatters = scatters || bucket.state >= StateLevel::kGradients;
      gathers = gathers || bucket.state == StateLevel::kParameters;
      bucket.for_each_stage([&](int stage, int) {
        elements_[at(stage)] += bucket.elements;
        tensors_[at(stage)] += bucket.tensors;
      });
    }
    for (const EqualReplicas& equal : replicas_.equals()) {
      ReplicaKey replica = {equal.kind, equal.samples, spec(equal.stage).recompute, parted()};
      const StageSeconds& seconds = stages_.seconds(info(equal.stage), replica);
      if (equal.odd) --replica.samples;
      const StageSeconds& smaller = stages_.seconds(info(equal.stage), replica);
      const std::int64_t elements = elements_[at(equal.stage)];
      step_.times.push_back({problem_.costs.begin_seconds(equal.kind, elements), seconds.forward,
                             seconds.backward,
                             problem_.costs.update_seconds(equal.kind, elements - equal.others,
                                                           tensors_[at(equal.stage)]),
                             smaller.forward, smaller.backward, seconds.weight, smaller.weight});
      for (const StepBucket& bucket : buckets_.all()) {
        step_.gradients.push_back(0);
        if (scatters) step_.larger_gradients.push_back(0);
        bucket.for_each_stage([&](int stage, int first) {
          if (stage != equal.stage) return;
          step_.gradients.back() = smaller.gradients[at(first)];
          if (scatters) step_.larger_gradients.back() = seconds.gradients[at(first)];
        });
      }
      if (gathers) add_needs(equal);
    }
  }

  /// Adds when passes of a replica need parameters that are divided.
  void add_needs(const EqualReplicas& equal) {
    const std::size_t buckets = buckets_.all().size(), row = step_.needs.size();
    step_.needs.resize(row + kNeedTimes * buckets);
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
          return static_cast<std::size_t>(std::lower_bound(ops.begin(), ops.end(), op) -
                                          ops.begin());
        };
        step_.needs[row + need_times(true, larger) * buckets + b] =
            needs->forward[place_of(stage.firsts[at(bucket.first)])];
        step_.needs[row + need_times(false, larger) * buckets + b] =
            needs->backward[place_of(bucket.needed)];
      }
    }
  }

  /// Adds the channels of all cuts for the larger or the smaller micro-batches.
  void add_channels(bool smaller) {
    for (const CutInfo& cut : partition_->cuts) {
      add_channels(cut.from, cut.to, cut.forward, true, smaller);
      add_channels(cut.to, cut.from, cut.back, false, smaller);
    }
  }

  std::int64_t samples_of(int stage, std::size_t replica, bool smaller) const {
    return spec(stage).shares[replica] - (smaller && replicas_.odd_of(stage) == replica ? 1 : 0);
  }

  /// Adds the channels of one cut in one direction, by sender, then receiver: those of `transfers`,
  /// summed over the tensors.
  void add_channels(int from, int to, const CutBytes& bytes, bool forward, bool smaller) {
    const StageSpec& senders = spec(from);
    const StageSpec& receivers = spec(to);
    const int first = static_cast<int>(step_.channels.size());
    const std::size_t producers = (forward ? senders : receivers).devices.size();
    std::int64_t begin = 0;  // first of the sender's rows
    for (std::size_t i = 0; i < senders.devices.size() && (bytes.rows || bytes.whole); ++i) {
      const std::int64_t end = begin + samples_of(from, i, smaller);
      std::int64_t other = 0;  // first of the receiver's rows
      for (std::size_t j = 0; j < receivers.devices.size(); ++j) {
        const std::int64_t share = samples_of(to, j, smaller);
        const std::int64_t rows = std::min(end, other + share) - std::max(begin, other);
        other += share;
        const bool some = bytes.rows && rows > 0;
        const bool all = bytes.whole && (forward ? j % producers == i : i % producers == j);
        if (!some && !all) continue;
        const DeviceId a = senders.devices[i], b = receivers.devices[j];
        step_.channels.push_back(
            {numbers_[at(a)], numbers_[at(b)],
             (some ? rows * bytes.row_bytes : 0) + (all ? bytes.whole_bytes : 0),
             groups_.transfer_between(a, b)});
      }
      begin = end;
    }
    step_.add_ends(first, static_cast<int>(senders.devices.size()),
                   static_cast<int>(receivers.devices.size()));
  }

  /// Returns the bytes of the parts of a bucket that travel as `type`.
  const std::vector<std::int64_t>& part_bytes(const StepBucket& bucket, DType type) {
    part_bytes_ = bucket.parts;
    for (std::int64_t& part : part_bytes_) part *= static_cast<std::int64_t>(size_of(type));
    return part_bytes_;
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
          : bucket.flow != nullptr ? groups_.flow_of(group, *bucket.flow, bucket.bytes)
                                   : groups_.all_reduce_of(group, bucket.algorithm, bucket.bytes));
    }
    everybody_ = groups_.find(used_, everybody_);
    step_.collectives.push_back(groups_.report_of(*everybody_));
    const bool clips = problem_.training.optimizer.clips();
    step_.collectives.push_back(clips ? groups_.norm_of(*everybody_) : &kNothing);
    for (const StepBucket& bucket : buckets_.all()) {
      if (!divides_) break;
      const bool takes = bucket.shared != nullptr || takes_time(bucket.stage);
      step_.collectives.push_back(bucket.parts.empty() || !takes
                                      ? &kNothing
                                      : groups_.all_gather_of(*bucket.group, bucket.algorithm,
                                                              part_bytes(bucket, bucket.held)));
    }
  }

  const Problem& problem_;
  StageTable stages_;
  GroupTable groups_;
  StepBuckets buckets_{problem_, stages_, groups_};
  StepReplicas replicas_{problem_, stages_};
  ProgramTable program_table_{ProgramTable::Of::kStep};
  ProgramTable memory_table_{ProgramTable::Of::kMemory};
  StepFolder folder_;
  StepEngine engine_;
  FlatStep step_;

  // These describe the current strategy.
  const Strategy* strategy_ = nullptr;
  const PartitionInfo* partition_ = nullptr;
  const std::vector<PrecedenceGraph>* programs_ = nullptr;
  PipelineShape shape_;
  std::vector<GroupInfo*> group_of_stage_;
  GroupInfo* everybody_ = nullptr;
  std::vector<std::int64_t> part_bytes_;
  bool divides_ = false;                          // a stage divides its state
  std::vector<FlatRank> rank_of_;                 // by device
  std::vector<int> numbers_;                      // rank by device
  std::vector<DeviceId> used_;                    // devices, by rank
  std::vector<std::int64_t> elements_, tensors_;  // trained, by stage
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
std::int64_t Evaluator::replica_bytes(const Strategy& strategy, int stage, std::int64_t samples,
                                      const Recomputation& recompute) {
  return impl_->replica_bytes(strategy, stage, samples, recompute);
}

}  // namespace agpcs
