// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator.h"

#include "cost_model/step/engine.h"
#include "cost_model/step/flat_step.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/strategy/state_parts.h"
#include "planner/evaluate/evaluator_groups.h"
#include "planner/evaluate/evaluator_programs.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/evaluate/step_folder.h"

#include <algorithm>
#include <limits>
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
        rank_of_(problem.cluster.devices.size()) {}

  Score evaluate(const Strategy& strategy) {
    run(strategy, [](int) { return true; });
    Score score;
    score.step_seconds = engine_.result().seconds;
    for (int rank = 0; rank < static_cast<int>(step_.ranks.size()); ++rank) {
      const RankRun& run = engine_.result().ranks[at(folder_.rank_of(rank))];
      score.exposed_communication += run.exposed_communication;
    }
    score.lacking = divides_ ? most_lacking() : lacking(strategy);
    return score;
  }

  double seconds_without_sums(const Strategy& strategy, int stage) {
    run(strategy, [stage](int other) { return stage != kEveryStage && stage != other; });
    return engine_.result().seconds;
  }

  std::int64_t lacking(const Strategy& strategy) {
    // What a replica owns depends on the buckets.
    divides(strategy) ? load_buckets(strategy) : load_memory(strategy);
    return most_lacking();
  }

  std::int64_t divided_bytes(const Strategy& strategy, int stage) {
    load_memory(strategy);
    return divided_of(stage).bytes();
  }

  Strategy grouped(Strategy strategy) {
    load_buckets(strategy);
    std::vector<Bucket> buckets;
    std::vector<std::size_t> next(strategy.stages.size());  // next parameter, by stage
    for (const BucketNow& now : buckets_) {
      Bucket bucket = {now.stage, now.algorithm, {}};
      if (now.flow != nullptr) {
        bucket.flow = static_cast<int>(now.flow - strategy.flows.data());
      }
      if (now.shared != nullptr) {
        bucket.parameters = now.shared->parameters;
        bucket.shared_with.assign(now.shared->stages.begin() + 1, now.shared->stages.end());
      }
      for (std::int64_t i = 0; i < now.tensors && now.shared == nullptr; ++i) {
        bucket.parameters.push_back(info(now.stage).parameters[next[at(now.stage)]++].id);
      }
      buckets.push_back(std::move(bucket));
    }
    strategy.buckets = std::move(buckets);
    return strategy;
  }

  std::int64_t replica_bytes(const Strategy& strategy, int stage, std::int64_t samples,
                             const Recomputation& recompute) {
    load_memory(strategy);
    StageMemory memory =
        stages_.memory(info(stage), spec(stage), samples, strategy.micro_batches, recompute);
    const Unsummed& unsummed = unsummed_[at(stage)];
    memory.optimizer -= divided_of(stage).bytes();  // with the sums of gradients
    memory.gradients += unsummed.gradients.summing - unsummed.rounded_bytes;
    memory.backward_peak += unsummed.gradients.filling;
    return (*memory_)[at(stage)].peak_bytes(memory);
  }

 private:
  struct BucketNow {
    std::int64_t bytes = 0;  // bytes that travel
    std::int64_t elements = 0, tensors = 0;
    DType held = DType::kFp32;
    int stage = 0;  // the first of its stages
    int first = 0;  // index in StageInfo::firsts for its last gradient, if it has one stage
    AllReduce algorithm = AllReduce::kRing;
    const PlanFlow* flow = nullptr;            // if the algorithm is `kFlow`
    const SharedParameters* shared = nullptr;  // if it has several stages
    GroupInfo* sharing = nullptr;              // their devices
    std::vector<std::int64_t> parts = {};      // elements by replica, if they divide its state
    StateLevel state = StateLevel::kWhole;     // what these divide
  };
  /// What a replica of a stage holds of gradients that are divided, but for the sums that it owns.
  struct Unsummed {
    UnsummedGradients gradients;
    std::int64_t rounded_bytes = 0;  // of the buckets, if each were rounded in memory of its own
  };
  /// Replicas of a stage with equal devices and equal shares.
  struct Equals {
    int stage = 0, kind = 0;
    std::int64_t samples = 0;
    bool odd = false;               // takes a sample less of smaller micro-batches
    std::int64_t others = 0;        // elements of the stage's buckets that other replicas own
    std::int64_t others_bytes = 0;  // of what is divided of them
  };

  /// Runs the step. The all-reduces of a stage take time if `takes_time(stage)`.
  template <typename F>
  void run(const Strategy& strategy, F takes_time) {
    load(strategy);
    step_.clear();
    step_.micro_batches = static_cast<int>(strategy.micro_batches);
    add_ranks();
    add_times();
    const std::int64_t larger = problem_.training.batch % strategy.micro_batches;
    step_.smaller_from = larger == 0 ? step_.micro_batches : static_cast<int>(larger);
    add_channels(false);
    if (larger != 0) add_channels(true);
    add_collectives(takes_time);
    const bool finished = engine_.run(folder_.fold(step_));
    AGPCS_CHECK(finished, "the programs of codegen wait for each other");
  }

  const StageSpec& spec(int stage) const { return strategy_->stages[at(stage)]; }
  StageInfo& info(int stage) const { return *partition_->stages[at(stage)]; }
  int stage_count() const { return static_cast<int>(strategy_->stages.size()); }

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
    if (divides_) load_memory(strategy);  // which says how they divide it
    strategy_ = &strategy;
    partition_ = &stages_.partition(strategy.stage_of, strategy.stages.size());
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
    buckets_.clear();
    strategy.buckets.empty() ? group_buckets() : read_buckets();
    shape_.set_passes(strategy, partition_->cuts);
    if (divides_) {
      divide_buckets();
    } else {
      find_equals();
    }
    write_buckets();
  }

  /// Loads what `most_lacking` needs. A program's memory does not depend on its buckets.
  void load_memory(const Strategy& strategy) {
    strategy_ = &strategy;
    partition_ = &stages_.partition(strategy.stage_of, strategy.stages.size());
    shape_.alone.assign(strategy.stages.size(), true);
    shape_.set_passes(strategy, partition_->cuts);
    shape_.bucket_stage.clear();
    shape_.states.clear();
    shape_.sharers.clear();
    memory_ = &memory_table_.find(shape_).memory;
    find_equals();
    owned_.resize(strategy.stages.size());
    unsummed_.resize(strategy.stages.size());
    for (int stage = 0; stage < stage_count(); ++stage) {
      owned_[at(stage)].clear();
      find_unsummed(stage);
      if (!divides_state(spec(stage), problem_.training)) continue;
      if (!has_own_parts(strategy, stage)) divide(stage);
    }
  }

  /// Returns what the replicas of a stage divide.
  DividedState divided_of(int stage) const {
    DividedState state(problem_.training.optimizer, divided_by(spec(stage), problem_.training));
    for (const auto& [id, first, gradient] : info(stage).parameters) {
      state.add(gradient.elements, gradient.held, 1);
    }
    return state;
  }

  /// Finds what a replica of a stage holds of divided gradients, by its buckets.
  void find_unsummed(int stage) {
    Unsummed& unsummed = unsummed_[at(stage)];
    unsummed = {};
    if (divided_by(spec(stage), problem_.training) != StateLevel::kGradients) return;
    filled_.clear();
    if (strategy_->buckets.empty()) {
      std::size_t next = 0;
      for (const StageInfo::Group& group : filled_groups(stage)) {
        filled_.emplace_back();
        for (std::int64_t i = 0; i < group.tensors; ++i) fill(info(stage).parameters[next++]);
      }
    }
    const bool own = has_own_parts(*strategy_, stage);
    for (const Bucket& bucket : strategy_->buckets) {
      if (bucket.stage != stage || bucket.is_shared()) continue;
      if (own && bucket.state != StateLevel::kGradients) continue;
      filled_.emplace_back();
      for (const TensorId id : bucket.parameters) fill(stages_.parameter(id));
    }
    unsummed.gradients = unsummed_gradients(filled_);
    for (const FilledBucket& bucket : filled_) unsummed.rounded_bytes += bucket.rounded_bytes;
  }
  void fill(const StageInfo::Parameter& parameter) {
    filled_.back().add(parameter.first, parameter.gradient.held_bytes,
                       parameter.gradient.rounded_bytes);
  }
  const StageInfo::Groups& filled_groups(int stage) {
    return stages_.packed(info(stage),
                          most_filled_bytes(info(stage), problem_.options.bucket_bytes));
  }

  Equals& equals_of(int stage, std::size_t replica) {
    return equals_[at(equals_of_[first_of_stage_[at(stage)] + replica])];
  }

  /// Divides the state of a stage among its replicas, as `lower` does.
  void divide(int stage) {
    const DividedState state = divided_of(stage);
    const std::size_t replicas = spec(stage).devices.size();
    std::vector<StateOwner> owners;
    for (std::size_t i = 0; i < replicas; ++i) {
      const Equals& replica = equals_of(stage, i);
      const DeviceKind& kind = problem_.cluster.kinds[at(replica.kind)];
      owners.push_back(state.owner(kind, peak_bytes(replica), replicas));
    }
    owned_[at(stage)] = divide_state(state.elements(), owners);
  }

  /// Divides each bucket that has no parts of its own, of the stages that divide their state.
  void divide_buckets() {
    for (BucketNow& bucket : buckets_) {
      if (bucket.shared == nullptr && !owned_[at(bucket.stage)].empty()) {
        bucket.parts = bucket_parts(bucket.elements, owned_[at(bucket.stage)]);
        bucket.state = divided_by(spec(bucket.stage), problem_.training);
      }
      if (bucket.parts.empty()) continue;
      const std::int64_t each =
          divided_element_bytes(problem_.training.optimizer, bucket.held, bucket.state);
      const std::vector<DeviceId>& owners = group_of(bucket).devices;
      for_each_stage(bucket, [&](int stage, int) {
        std::size_t owner = 0;  // both are ascending
        for (std::size_t i = 0; i < spec(stage).devices.size(); ++i) {
          while (owners[owner] != spec(stage).devices[i]) ++owner;
          const std::int64_t others = bucket.elements - bucket.parts[owner];
          Equals& replica = equals_of(stage, i);
          replica.others += others;
          replica.others_bytes += others * each;
        }
      });
    }
  }

  void group_buckets() {
    const std::int64_t bytes = problem_.options.bucket_bytes;
    for (int stage = 0; stage < stage_count(); ++stage) {
      GroupInfo& group = *group_of_stage_[at(stage)];
      const StageInfo::Groups& buckets =
          divided_by(spec(stage), problem_.training) == StateLevel::kGradients
              ? filled_groups(stage)
          : bytes > 0
              ? stages_.packed(info(stage), bytes)
              : stages_.scheduled(info(stage), spec(stage), groups_.lines_of(group), group.number);
      for (const StageInfo::Group& bucket : buckets) {
        buckets_.push_back({bucket.bytes, bucket.elements, bucket.tensors, bucket.held, stage,
                            bucket.first, groups_.choose(group, bucket.bytes)});
      }
    }
    for (const SharedParameters* const shared : stages_.shared(*partition_, bytes)) {
      BucketNow& bucket = add_shared(*shared);
      bucket.algorithm = groups_.choose(group_of(bucket), bucket.bytes);
    }
  }

  BucketNow& add_shared(const SharedParameters& shared) {
    BucketNow now;
    now.bytes = shared.bytes;
    now.elements = shared.elements;
    now.tensors = static_cast<std::int64_t>(shared.parameters.size());
    now.stage = shared.stages.front();
    now.held = stages_.parameter(shared.parameters.front()).gradient.held;
    now.shared = &shared;
    write_devices(*strategy_, shared.stages, sharing_);
    now.sharing = groups_.find(sharing_, nullptr);
    buckets_.push_back(now);
    return buckets_.back();
  }

  /// Calls `f(stage, first)` for each stage of a bucket, with the index in its `firsts`.
  template <typename F>
  void for_each_stage(const BucketNow& bucket, F f) const {
    if (bucket.shared == nullptr) return f(bucket.stage, bucket.first);
    for (std::size_t i = 0; i < bucket.shared->stages.size(); ++i) {
      f(bucket.shared->stages[i], bucket.shared->firsts[i]);
    }
  }

  /// Returns the devices that sum a bucket.
  GroupInfo& group_of(const BucketNow& bucket) {
    return bucket.shared == nullptr ? *group_of_stage_[at(bucket.stage)] : *bucket.sharing;
  }

  void write_buckets() {
    shape_.bucket_stage.clear();
    shape_.states.clear();
    shape_.sharers.clear();
    for (const BucketNow& bucket : buckets_) {
      const auto index = static_cast<int>(shape_.bucket_stage.size());
      shape_.bucket_stage.push_back(bucket.stage);
      shape_.states.push_back(bucket.state);
      for_each_stage(bucket, [&](int stage, int) {
        if (stage != bucket.stage) shape_.sharers.emplace_back(index, stage);
      });
    }
  }

  void read_buckets() {
    for (const Bucket& bucket : strategy_->buckets) {
      if (bucket.is_shared()) {
        const SharedParameters& shared =
            stages_.shared_by(*partition_, bucket.stage, bucket.shared_with, bucket.parameters);
        BucketNow& now = add_shared(shared);
        now.algorithm = bucket.algorithm;
        now.parts = bucket.parts;
        now.state = bucket.state;
        continue;
      }
      BucketNow now;
      now.stage = bucket.stage;
      now.algorithm = bucket.algorithm;
      now.parts = bucket.parts;
      now.state = bucket.state;
      if (bucket.flow >= 0) now.flow = &strategy_->flows[at(bucket.flow)];
      now.tensors = static_cast<std::int64_t>(bucket.parameters.size());
      OpId first = std::numeric_limits<OpId>::max();
      for (const TensorId id : bucket.parameters) {
        const StageInfo::Parameter& parameter = stages_.parameter(id);
        now.bytes += parameter.gradient.travelling_bytes;
        now.held = parameter.gradient.held;
        now.elements += parameter.gradient.elements;
        first = std::min(first, parameter.first);
      }
      now.first = info(bucket.stage).index_of(first);
      buckets_.push_back(now);
    }
  }

  void find_equals() {
    equals_.clear();
    equals_of_.clear();
    first_of_stage_.clear();
    const bool equal = problem_.training.batch % strategy_->micro_batches == 0;
    odd_.clear();
    for (int stage = 0; stage < stage_count(); ++stage) {
      const std::size_t first = equals_.size();
      first_of_stage_.push_back(equals_of_.size());
      // Replicas that divide state differ by a few elements.
      const bool alike = !divides_state(spec(stage), problem_.training);
      odd_.push_back(equal ? spec(stage).devices.size() : odd_replica(spec(stage)));
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

  /// Sets the ranks, which follow the order of devices, as in `lower`.
  void add_ranks() {
    std::fill(rank_of_.begin(), rank_of_.end(), FlatRank());
    std::size_t next = 0;  // index in equals_of_
    for (int stage = 0; stage < stage_count(); ++stage) {
      const std::vector<DeviceId>& devices = spec(stage).devices;
      for (std::size_t i = 0; i < devices.size(); ++i) {
        rank_of_[at(devices[i])] = {&(*programs_)[at(stage)], stage, static_cast<int>(i),
                                    devices[i], equals_of_[next++]};
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
    for (const BucketNow& bucket : buckets_) {
      int group = bucket.stage;
      if (bucket.shared != nullptr) {
        add_group(group_of(bucket).devices);
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
    bool scatters = false;
    for (const BucketNow& bucket : buckets_) {
      scatters = scatters || bucket.state == StateLevel::kGradients;
      for_each_stage(bucket, [&](int stage, int) {
        elements_[at(stage)] += bucket.elements;
        tensors_[at(stage)] += bucket.tensors;
      });
    }
    for (const Equals& equal : equals_) {
      ReplicaKey replica = {equal.kind, equal.samples, spec(equal.stage).recompute};
      const StageSeconds& seconds = stages_.seconds(info(equal.stage), replica);
      if (equal.odd) --replica.samples;
      const StageSeconds& smaller = stages_.seconds(info(equal.stage), replica);
      const std::int64_t elements = elements_[at(equal.stage)];
      step_.times.push_back({problem_.costs.begin_seconds(equal.kind, elements), seconds.forward,
                             seconds.backward,
                             problem_.costs.update_seconds(equal.kind, elements - equal.others,
                                                           tensors_[at(equal.stage)]),
                             smaller.forward, smaller.backward});
      for (const BucketNow& bucket : buckets_) {
        step_.gradients.push_back(0);
        if (scatters) step_.larger_gradients.push_back(0);
        for_each_stage(bucket, [&](int stage, int first) {
          if (stage != equal.stage) return;
          step_.gradients.back() = smaller.gradients[at(first)];
          if (scatters) step_.larger_gradients.back() = seconds.gradients[at(first)];
        });
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
    return spec(stage).shares[replica] - (smaller && odd_[at(stage)] == replica ? 1 : 0);
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
  const std::vector<std::int64_t>& part_bytes(const BucketNow& bucket, DType type) {
    part_bytes_ = bucket.parts;
    for (std::int64_t& part : part_bytes_) part *= static_cast<std::int64_t>(size_of(type));
    return part_bytes_;
  }

  template <typename F>
  void add_collectives(F takes_time) {
    static const Exchange kNothing;
    const std::optional<DType> wire = problem_.training.wire_type;
    for (const BucketNow& bucket : buckets_) {
      GroupInfo& group = group_of(bucket);
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
    for (const BucketNow& bucket : buckets_) {
      if (!divides_) break;
      const bool takes = bucket.shared != nullptr || takes_time(bucket.stage);
      step_.collectives.push_back(bucket.parts.empty() || !takes
                                      ? &kNothing
                                      : groups_.all_gather_of(group_of(bucket), bucket.algorithm,
                                                              part_bytes(bucket, bucket.held)));
    }
  }

  std::int64_t peak_bytes(const Equals& equal) {
    const StageSpec& of = spec(equal.stage);
    StageMemory memory = stages_.memory(info(equal.stage), of, equal.samples,
                                        strategy_->micro_batches, of.recompute);
    const Unsummed& unsummed = unsummed_[at(equal.stage)];
    memory.optimizer -= equal.others_bytes;  // with the sums of gradients
    memory.gradients += unsummed.gradients.summing - unsummed.rounded_bytes;
    memory.backward_peak += unsummed.gradients.filling;
    return (*memory_)[at(equal.stage)].peak_bytes(memory);
  }

  std::int64_t most_lacking() {
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    for (const Equals& equal : equals_) {
      most =
          std::max(most, peak_bytes(equal) - problem_.cluster.kinds[at(equal.kind)].memory_bytes);
    }
    return most;
  }

  const Problem& problem_;
  StageTable stages_;
  GroupTable groups_;
  ProgramTable program_table_{ProgramTable::Of::kStep};
  ProgramTable memory_table_{ProgramTable::Of::kMemory};
  StepFolder folder_;
  StepEngine engine_;
  FlatStep step_;

  // These describe the current strategy.
  const Strategy* strategy_ = nullptr;
  const PartitionInfo* partition_ = nullptr;
  const std::vector<PrecedenceGraph>* programs_ = nullptr;
  const std::vector<ProgramMemory>* memory_ = nullptr;
  PipelineShape shape_;
  std::vector<GroupInfo*> group_of_stage_;
  GroupInfo* everybody_ = nullptr;
  std::vector<BucketNow> buckets_;
  std::vector<DeviceId> sharing_;  // devices of stages that share a bucket
  std::vector<Equals> equals_;     // by stage
  std::vector<int> equals_of_;     // by stage, then replica: index in equals_
  std::vector<std::int64_t> part_bytes_;
  std::vector<std::size_t> first_of_stage_;       // by stage: index in equals_of_
  bool divides_ = false;                          // a stage divides its state
  std::vector<std::vector<std::int64_t>> owned_;  // by stage: elements by replica; empty: all
  std::vector<Unsummed> unsummed_;                // by stage
  std::vector<FilledBucket> filled_;              // buckets of a stage
  std::vector<std::size_t> odd_;   // by stage: its odd replica, past the last if none
  std::vector<FlatRank> rank_of_;  // by device
  std::vector<int> numbers_;       // rank by device
  std::vector<DeviceId> used_;     // devices, by rank
  std::vector<std::int64_t> elements_, tensors_;  // trained, by stage
};

Evaluator::Evaluator(const Problem& problem) : impl_(std::make_unique<Impl>(problem)) {}
Evaluator::~Evaluator() = default;
Evaluator::Evaluator(Evaluator&&) noexcept = default;
Evaluator& Evaluator::operator=(Evaluator&&) noexcept = default;

Score Evaluator::evaluate(const Strategy& strategy) { return impl_->evaluate(strategy); }
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
