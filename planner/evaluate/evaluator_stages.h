// SPDX-License-Identifier: Apache-2.0
// Partitions of a graph into stages, and what the evaluator knows of each stage: parameters,
// seconds, memory. Everything is worked out once and looked up afterwards.
#pragma once

#include "ir/strategy/segments.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/bucket_schedule.h"
#include "planner/problem/problem.h"
#include "planner/problem/stage_timer.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

/// The seconds of one micro-batch on a stage.
struct StageSeconds {
  double forward = 0, backward = 0;
  double weight = 0;  ///< of a parted backward pass; `backward` is then the input pass
  double sum() const { return forward + backward + weight; }
  /// By `StageInfo::firsts`: seconds from the start of backward, or of the weight pass, until that
  /// operator's gradients are ready.
  std::vector<double> gradients;
};

/// The seconds of its passes until they need what an operator reads, by operator of the stage.
struct StageNeeds {
  std::vector<double> forward, backward;
};

/// What the seconds and bytes of a replica of a stage depend on; `kind` is that of its device, or
/// kNone where it does not matter.
struct ReplicaKey {
  int kind = kNone;
  std::int64_t samples = 0;
  Recomputation recompute;
  bool parted = false;  ///< the backward pass is parted
  friend auto operator<=>(const ReplicaKey&, const ReplicaKey&) = default;
  std::size_t hash() const;
};
struct ReplicaHash {
  std::size_t operator()(const ReplicaKey& key) const { return key.hash(); }
};
template <typename T>
using ByReplica = std::unordered_map<ReplicaKey, T, ReplicaHash>;

struct TeamInfo;

/// What a replica of a stage holds of gradients and parameters that are divided, but for what it
/// owns.
struct Unsummed {
  HeldInPasses held;
  std::int64_t rounded_bytes = 0;  ///< of the buckets, if each were rounded in memory of its own
  /// Where parameters are divided, too: by bucket of these, what backward passes need it for.
  std::vector<OpId> needed;
  std::vector<BucketUse> uses;
  ByReplica<StageMemory> memory;  ///< as in StageInfo, with what is held
};

/// A set of operators with what it sends and receives.
struct StageInfo {
  StageInfo();
  ~StageInfo();
  /// All but gradients, held, micro_batches, parts_backward, segment_ends and what segments do.
  StageParts parts;
  struct Parameter {
    TensorId id = kNone;
    /// The operators that read it last and first: the backward of the one begins the gradient, that
    /// of the other completes it. `read` is the last of the graph that reads it or a view of it.
    OpId last = kNone, first = kNone, read = kNone;
    GradientSize gradient;
  };
  std::vector<Parameter> parameters;  ///< trained ones of it alone, as backward completes them
  std::vector<Parameter> shared;      ///< those that other stages read, too, in the same order
  std::int64_t held_bytes = 0;        ///< of the gradients of both
  std::int64_t rounded_bytes = 0, shared_rounded_bytes = 0;
  std::int64_t travelling_bytes = 0;  ///< of those of `parameters`
  std::vector<OpId> firsts;           ///< the first readers of both, descending, each once
  /// A bucket: the next `tensors` of `parameters`.
  struct Group {
    std::int64_t bytes = 0;  ///< bytes that travel
    std::int64_t elements = 0, tensors = 0;
    DType held = DType::kFp32;
    int first = 0;  ///< index in `firsts` of the operator that completes its last gradient
  };
  using Groups = std::vector<Group>;
  std::map<std::int64_t, Groups> packed;  ///< by the most bytes of a bucket
  /// By the slowest replica and the device group's number.
  std::map<std::pair<ReplicaKey, std::uint64_t>, Groups> scheduled;

  ByReplica<StageSeconds> seconds;
  ByReplica<StageNeeds> needs;    ///< as far as someone asked
  ByReplica<StageMemory> memory;  ///< with one micro-batch and without gradients
  std::map<Recomputation, std::vector<std::size_t>> segment_ends;
  /// With the buckets of `StageTable::filled`, by what is divided.
  std::map<std::pair<StateLevel, Recomputation>, Unsummed> unsummed;
  /// By what is divided, and whether the optimizer's state is in the memory of hosts.
  std::map<std::pair<StateLevel, bool>, DividedState> divided;
  std::vector<std::unique_ptr<TeamInfo>> teams;  ///< by body, as far as someone asked

  /// Returns the index of `first` in `firsts`. Needs: it is there.
  int index_of(OpId first) const;
};

/// Bytes of the tensors from one stage to another, in one direction. A tensor whose axis 0 is the
/// batch goes by rows, one for each sample: a replica receives the rows of its samples only.
struct CutBytes {
  bool rows = false;           ///< some tensor goes by rows
  std::int64_t row_bytes = 0;  ///< bytes of one row, summed over those tensors
  bool whole = false;          ///< some tensor goes as a whole to each consumer
  std::int64_t whole_bytes = 0;
};

/// The tensors between two stages: activations forward, their gradients back.
struct CutInfo {
  int from = 0, to = 0;  ///< stages
  CutBytes forward, back;
  bool local = false;  ///< both have the same devices, so no message carries it
  bool has_gradient() const { return back.rows || back.whole; }
};

/// Parameters that the same stages read, all of one type.
struct SharedParameters {
  std::vector<int> stages;  ///< ascending, at least two
  std::vector<TensorId> parameters;
  std::vector<int> firsts;  ///< by `stages`: index in `StageInfo::firsts`, as in `Group`
  std::int64_t bytes = 0;   ///< bytes of gradients that travel
  std::int64_t elements = 0;
};

/// What stages of a partition share, as far as someone asked.
struct SharedInfo {
  std::deque<SharedParameters> known;
  using Buckets = std::vector<const SharedParameters*>;
  std::map<std::int64_t, Buckets> packed;  ///< by the most bytes of a bucket
};

/// A partition of the graph into stages.
struct PartitionInfo {
  std::vector<int> stage_of;
  int round = 0;  ///< over how many device groups the stages go round
  std::vector<StageInfo*> stages;
  std::vector<CutInfo> cuts;  ///< by (from, to)
  std::unique_ptr<SharedInfo> shared = std::make_unique<SharedInfo>();
};

/// Returns the numbers of gradients in buckets of at most `bucket_bytes`. A larger gradient has a
/// bucket of its own, and gradients of different types do not share one. `bytes`: of each, as it
/// travels.
std::vector<std::size_t> packed_counts(const std::vector<StageInfo::Parameter>& parameters,
                                       const std::vector<std::int64_t>& bytes,
                                       std::int64_t bucket_bytes);

/// Looks up partitions and stages, or works them out. Refers to `problem`.
class StageTable {
 public:
  explicit StageTable(const Problem& problem);

  /// Returns the partition into `stages` stages, which go round over `round` device groups
  /// (`round_size`). Cost: O(operators); O(edges log) if the partition is new.
  const PartitionInfo& partition(const std::vector<int>& stage_of, std::size_t stages, int round);
  /// Returns what is known of a trained parameter.
  const StageInfo::Parameter& parameter(TensorId id) const {
    return parameters_[static_cast<std::size_t>(parameter_of_[static_cast<std::size_t>(id)])];
  }
  /// Returns the last operator of a stage that reads a parameter of it alone, or a view of that:
  /// readers of a view may be in other stages.
  OpId read_in(const StageInfo& stage, const StageInfo::Parameter& parameter) const;
  const StageSeconds& seconds(StageInfo& stage, const ReplicaKey& replica);
  const StageNeeds& needs(StageInfo& stage, const ReplicaKey& replica);
  /// Returns where segments of a stage that recomputes so end.
  const std::vector<std::size_t>& segment_ends(StageInfo& stage, const Recomputation& recompute);
  /// Returns the memory of a replica of `spec` that has `samples` samples of each micro-batch, and
  /// holds what `unsummed` says in its passes, unless that is nullptr.
  StageMemory memory(StageInfo& stage, const StageSpec& spec, const ReplicaKey& replica,
                     std::int64_t micro_batches, Unsummed* unsummed);

  /// Counts so many bytes more that are remembered with the stages.
  void remember(std::size_t bytes) { remembered_ += bytes; }
  /// Packs gradients into buckets (`packed_counts`), the first completed gradient first.
  const StageInfo::Groups& packed(StageInfo& stage, std::int64_t bucket_bytes);
  /// Returns those of a stage that divides its gradients, of which a replica holds one or two
  /// whole: of at most `bucket_bytes` or, if that is 0, a small part of all.
  const StageInfo::Groups& filled(StageInfo& stage, std::int64_t bucket_bytes);
  /// Returns the buckets of `schedule_buckets`, for gradients as the slowest replica's last
  /// backward completes them, and for all-reduces that take what `lines` say. `number` identifies
  /// `lines`.
  const StageInfo::Groups& scheduled(StageInfo& stage, const StageSpec& spec, bool parted,
                                     const std::vector<CostLine>& lines, std::uint64_t number);
  /// Returns the buckets of the parameters that stages share, sorted by stages: one for each set of
  /// stages and type, or with `bucket_bytes` > 0 several of at most so many bytes. They are
  /// reduced after all others: their last gradients come when the first of the stages ends its last
  /// backward pass.
  const SharedInfo::Buckets& shared(const PartitionInfo& partition, std::int64_t bucket_bytes);
  /// Returns what `parameters`, which `stage` and the stages `others` read, are to these stages.
  const SharedParameters& shared_by(const PartitionInfo& partition, int stage,
                                    const std::vector<int>& others,
                                    const std::vector<TensorId>& parameters);

 private:
  /// A tensor that an operator makes and operators read.
  struct Made {
    TensorId id = kNone;
    OpId producer = kNone;
    std::size_t reader = 0, reader_end = 0;  // range in `readers_`
    bool needs_gradient = false;
    CutBytes bytes;
  };
  void forget_if_many();
  void list_made();
  template <typename F>
  void for_each_crossing(const std::vector<int>& stage_of, F f) const;
  std::unique_ptr<PartitionInfo> make_partition(const std::vector<int>& stage_of,
                                                std::size_t stages, int round);
  StageInfo* intern(StageParts parts);
  void add_parameters(StageInfo& stage) const;
  void add_shared(StageInfo& stage) const;
  StageInfo::Group group(const StageInfo& stage, std::size_t first, std::size_t count) const;
  StageSeconds make_seconds(StageInfo& stage, const ReplicaKey& replica);
  std::vector<double> copies(StageInfo& stage, const ReplicaKey& replica);
  StageMemory make_memory(StageInfo& stage, const ReplicaKey& replica);
  const StageMemory& known_memory(StageInfo& stage, const ReplicaKey& replica);

  const Problem& problem_;
  StageMemoryModel memory_model_;
  Segments segments_;
  std::vector<StageInfo::Parameter> parameters_;  // all trained ones, by first use
  std::vector<int> parameter_of_;                 // by TensorId: index in `parameters_`, or -1
  std::vector<int> tied_;                         // those that several operators read
  std::vector<std::size_t> first_read_;           // by OpId: where those that it reads first begin
  std::vector<Made> made_;                        // by producer
  std::vector<OpId> readers_;                     // of `made_`
  std::vector<double> weight_parts_;              // by OpId
  const PartitionInfo* last_ = nullptr;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<PartitionInfo>> partitions_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<StageInfo>> stages_;
  std::size_t remembered_ = 0;  // about how many bytes these take
  OperatorTimes times_;
};

}  // namespace agpcs
