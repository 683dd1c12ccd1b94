// SPDX-License-Identifier: Apache-2.0
// FlatStep: a step in the form that the engine runs, in flat arrays that keep their memory from one
// step to the next. Everything it refers to must outlive it.
#pragma once

#include "cost_model/network/link_model.h"
#include "cost_model/step/precedence_graph.h"
#include "cost_model/step/team/script.h"
#include "ir/plan/lookup.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {

struct StepModel;

/// The kinds of passes for which it is known when they need a bucket: forward and backward passes
/// of smaller micro-batches, then of larger ones.
inline constexpr std::size_t kNeedTimes = 4;
inline std::size_t need_times(bool forward, bool larger) {
  return (larger ? 2 : 0) + (forward ? 0 : 1);
}

/// Seconds of computations. Ranks with equal times share an entry.
struct FlatTimes {
  double begin = 0, forward = 0, backward = 0, update = 0;
  double smaller_forward = 0, smaller_backward = 0;
  double weight = 0, smaller_weight = 0;  ///< where backward passes are parted: their second parts
  /// What the step's last backward pass of a team takes longer. Passes of teams follow their
  /// scripts (FlatTeam): their seconds here are bounds for steps of which only `most` seconds
  /// count.
  double step_end = 0;
  /// Returns those of the step's last backward pass, of a smaller micro-batch.
  double last_backward() const { return smaller_backward + step_end; }
};

struct FlatRank {
  const PrecedenceGraph* program = nullptr;
  int stage = 0;  ///< the first of its stages
  int place = 0;  ///< among the ranks of its stages, which are in the order of replicas, and of
                  ///< members where replicas are teams
  DeviceId device = 0;
  int times = 0;   ///< index in FlatStep::times of its first stage
  int team = -1;   ///< the number of its team; -1: it is alone
  int member = 0;  ///< its number there; 0 beside unlike teams, where all ranks of a stage sum
};

/// All tensors of a cut from one rank to another, in one direction.
struct FlatChannel {
  int from = 0, to = 0;      ///< ranks
  std::int64_t bytes = kOf;  ///< bytes of its flow; kOf: those of its exchange
  const Exchange* exchange = nullptr;
  static constexpr std::int64_t kOf = -1;
};

/// What a team does in passes of larger and of smaller micro-batches. Its exchanges are those of
/// `FlatStep::team_exchanges` from `larger_first` and `smaller_first` on.
struct FlatTeam {
  const TeamScript *larger = nullptr, *smaller = nullptr;
  int larger_first = 0, smaller_first = 0;
};

struct FlatStep {
  int micro_batches = 1;
  int smaller_from = 1;  ///< the first smaller micro-batch; `micro_batches` if all are equal
  int round = 1;         ///< number of stages after which those of the same ranks follow
  int rounds = 1;        ///< number of stages of each rank
  std::vector<FlatRank> ranks;
  /// Those of first stages, then as many of second ones in the same order, and so on: `rounds` in
  /// all. What is of a rank, not of a pass, is with its first stage.
  std::vector<FlatTimes> times;
  /// [times x buckets + bucket]: seconds since the last backward, or weight pass, began.
  std::vector<double> gradients;
  std::vector<double> larger_gradients;  ///< those of a larger micro-batch; may be left out where
                                         ///< no sum is of a single micro-batch
  std::vector<double> tails;  ///< by times: seconds that the step surely takes after the last pass
                              ///< of a rank, if that takes no longer than alone; may be left out
  /// [(times x kNeedTimes + which) x buckets + bucket]: seconds since a pass began until it needs
  /// the bucket; empty where ranks divide no parameters.
  std::vector<double> needs;
  std::vector<FlatChannel> channels;
  /// By bucket: all-reduce or reduce-scatter; then the report and the norm; then by bucket:
  /// all-gather, or gather for a pass, which may be left out where no bucket is sharded and no
  /// stage has teams; then the all-reduces of the further members of teams.
  std::vector<const Exchange*> collectives;
  /// By collective: what it takes at least; may be left out.
  std::vector<double> least_seconds;
  /// The ranks that sum a bucket are a group: those of a stage, or those of a set of stages that
  /// share buckets. The groups of the stages come first, in their order; of a stage with teams, its
  /// group is that of the first members. Members sum with those of the same number.
  std::vector<int> group_of_bucket;
  std::vector<int> group_first;    ///< by group, and one more: index in `group_members`
  std::vector<int> group_members;  ///< ranks, by group, ascending
  /// By bucket: the number, among the all-reduces of further members, of that of its second
  /// members; empty where no stage has teams.
  std::vector<int> further_first;
  std::vector<int> group_of_further;  ///< by all-reduce of further members
  std::vector<int> team_first;        ///< by team, and one more: index in `team_ranks`
  std::vector<int> team_ranks;        ///< by team, in the order of its members
  std::vector<FlatTeam> teams;
  std::vector<const Exchange*> team_exchanges;
  /// What teams put on links in a step, and how often. Only what counts bytes needs it.
  std::vector<std::pair<const Exchange*, std::int64_t>> team_bytes;

  std::size_t bucket_count() const { return group_of_bucket.size(); }
  /// Returns the index of the times of a computation of `rank`. Only passes of ranks with several
  /// stages name theirs.
  std::size_t times_of(const FlatRank& rank, const InstructionId& id) const {
    const auto first = static_cast<std::size_t>(rank.times);
    if (id.object < 0) return first;
    return first + static_cast<std::size_t>(id.object / round) *
                       (times.size() / static_cast<std::size_t>(rounds));
  }
  /// Returns the index of an instruction of the collective stream in `collectives`.
  std::size_t collective_of(const FlatRank& rank, const InstructionId& id) const {
    if (id.opcode == Opcode::kReport) return bucket_count();
    if (id.opcode == Opcode::kNorm) return bucket_count() + 1;
    const auto bucket = static_cast<std::size_t>(id.object);
    if (rank.member > 0) {
      return 2 * bucket_count() + 2 +
             static_cast<std::size_t>(further_first[bucket] + rank.member - 1);
    }
    return sums_gradients(id.opcode) ? bucket : bucket_count() + 2 + bucket;
  }
  /// Returns the group of a collective; -1 for those in which all ranks take part.
  int group_of_collective(std::size_t collective) const {
    const std::size_t count = bucket_count();
    if (collective == count || collective == count + 1) return -1;
    if (collective < count) return group_of_bucket[collective];
    if (collective < 2 * count + 2) return group_of_bucket[collective - count - 2];
    return group_of_further[collective - 2 * count - 2];
  }
  /// Returns the channels that `id`, a send or receive of `rank`, waits for.
  std::span<const int> channels_of(const FlatRank& rank, const InstructionId& id) const {
    const std::size_t half = id.micro_batch < smaller_from ? 0 : end_base_.size() / 2;
    const auto base = static_cast<std::size_t>(end_base_[half + end_index(id.object, id.opcode)]);
    const std::size_t at = base + static_cast<std::size_t>(rank.place);
    const auto first = static_cast<std::size_t>(end_first_[at]);
    return {end_channels_.data() + first, static_cast<std::size_t>(end_first_[at + 1]) - first};
  }

  void clear();
  void clear_ends();
  /// Adds the next team, which does as these scripts say; they may be one.
  void add_team(const TeamScript& larger, const TeamScript& smaller);
  /// Adds the next end. Each cut has four ends, in this order: send, receive, send gradient,
  /// receive gradient. If there are smaller micro-batches, their ends follow all others. `places`:
  /// the number of the stage's ranks.
  void add_end(const std::vector<std::vector<int>>& by_place, std::size_t places);
  /// Adds the two ends of a send and its receive. Their channels start at `first`, sorted by
  /// sender, then receiver. `senders` and `receivers` are the numbers of ranks of these stages.
  void add_ends(int first, int senders, int receivers);
  /// Calls `f(end, channel)` for the channels of all ends that send.
  template <typename F>
  void for_each_sent(F f) const {
    for (std::size_t end = 0; end < end_base_.size(); end += 2) {
      const auto first = static_cast<std::size_t>(end_base_[end]);
      const auto last = static_cast<std::size_t>(end_base_[end + 1]) - 1;
      for (int i = end_first_[first]; i < end_first_[last]; ++i) {
        f(static_cast<int>(end), end_channels_[static_cast<std::size_t>(i)]);
      }
    }
  }
  /// Takes the ends of `other`, whose channel c is `now[c]` here, where one may stand for several.
  void take_ends(const FlatStep& other, const std::vector<int>& now);

 private:
  static std::size_t end_index(int cut, Opcode opcode) {
    const int kind = static_cast<int>(opcode) - static_cast<int>(Opcode::kSend);
    return static_cast<std::size_t>(cut * 4 + kind);
  }
  void add_end(int first, int places, bool sending);

  std::vector<int> end_base_;   // [cut x 4 + opcode - kSend]: index in end_first_
  std::vector<int> end_first_;  // by place, and one more: index in end_channels_
  std::vector<int> end_channels_;
};

/// Writes `model` in flat form to `step`, which refers to it.
void flatten(const Plan& plan, const StepModel& model, FlatStep& step);

}  // namespace agpcs
