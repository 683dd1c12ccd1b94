// SPDX-License-Identifier: Apache-2.0
// Moves on strategies: the actions of the AGPCS paper's agent (section 3.2), cuts of the graph and
// the schedule of communication.
#pragma once

#include "ir/rng.h"
#include "planner/problem.h"
#include "planner/search_point.h"
#include "planner/stage_timers.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// What a move does; a, b, c, d are the Move's numbers.
enum class MoveKind : int {
  // Cuts.
  kShift,        ///< between stages a and a + 1: b = 0 the last blocks of a go on, b = 1 the first
                 ///< of a + 1 come back; c = 0: one block, else 1 / 2^(4 - c) of the stage's FLOPs
  kMoveBlock,    ///< block a to the next (b = 1) or the previous (b = -1) stage
  kMerge,        ///< stages a and a + 1 become one
  kSplit,        ///< stage a becomes two, its devices divided the b-th way; c = 1: the other order
  kMoveDevices,  ///< device a (c = 0), or with all of its kind on its host in its stage (c = 1), or
                 ///< with all of its kind there (c = 2), to stage b; b = -1: to none
  kSwapDevices,  ///< devices a and b, of different stages or b of none, change places
  kSwapGroups,   ///< stages a and b change all their devices
  kShares,       ///< in stage a, replica b gives d samples to replica c
  kRebalance,    ///< shares of stage a by speed (b = 0) or equal (b = 1)
  kMicroBatches,  ///< a micro-batches
  kSchedule,      ///< 1F1B becomes GPipe, and back
  kRecompute,     ///< stage a does or no longer does; a = -1: all do (b = 1) or none (b = 0)
  kRecut,    ///< all cuts anew; a: groups stay (0), rotate (1, 2), reversed (3); b: in proportion
             ///< to speed (0) or parameters in proportion to memory (1)
  kRestage,  ///< a stages of equally many devices, b: in cluster order, reversed or fastest
             ///< kind first; c as kRecut's b; d: of those in use (0) or of all (1)
  // The schedule of communication.
  kMergeBuckets,     ///< bucket a takes in b, the next of its stage
  kSplitBucket,      ///< bucket a becomes two, the second from gradient b on
  kSwapBuckets,      ///< a and b, neighbours in the order of their stage, change places
  kBucketAlgorithm,  ///< bucket a is reduced by algorithm b; a = -1 - stage: all of that stage
};
inline constexpr int kMoveKindCount = 18;
std::string_view name_of(MoveKind kind);  ///< "shift", "move-block", ...

/// The moves of one problem. A stage whose blocks or devices change has its shares balanced by
/// speed; a strategy whose cuts or devices change loses its buckets, so that its gradients are
/// grouped anew. Not for concurrent use. Refers to `problem`.
class StrategyMoves {
 public:
  explicit StrategyMoves(const Problem& problem);

  /// At most `most` different moves, kinds in turns; each is possible. `grouped`: `strategy` with
  /// its buckets.
  std::vector<Move> list(const Strategy& strategy, const Strategy& grouped, std::size_t most,
                         Rng& rng);
  /// Nothing where the move is impossible or changes nothing. The result verifies.
  std::optional<Strategy> apply(const Strategy& strategy, const Strategy& grouped,
                                const Move& move);
  StageTimers& timers() { return timers_; }

 private:
  using Changed = std::optional<Strategy>;
  Changed shift(const Strategy& strategy, const Move& move);
  Changed move_block(const Strategy& strategy, const Move& move);
  Changed merge(const Strategy& strategy, const Move& move);
  Changed split(const Strategy& strategy, const Move& move);
  Changed move_devices(const Strategy& strategy, const Move& move);
  Changed swap_devices(const Strategy& strategy, const Move& move);
  Changed swap_groups(const Strategy& strategy, const Move& move);
  Changed move_shares(const Strategy& strategy, const Move& move);
  Changed rebalance(const Strategy& strategy, const Move& move);
  Changed change_micro_batches(const Strategy& strategy, const Move& move);
  static Changed change_recompute(const Strategy& strategy, const Move& move);

  Changed recut(const Strategy& strategy, const Move& move);
  Changed restage(const Strategy& strategy, const Move& move);
  Changed with_groups(const Strategy& strategy, std::vector<std::vector<DeviceId>> groups,
                      bool by_memory);
  double cut_penalty(int block) const;
  double speed_of(const std::vector<DeviceId>& devices) const;

  int cut_for(const std::vector<int>& blocks, const std::vector<DeviceId>& first,
              const std::vector<DeviceId>& second) const;
  /// Balances the shares of the stages in `changed`; drops buckets.
  Changed balanced(Strategy strategy, const std::vector<int>& changed);
  void balance(Strategy& strategy, int stage, std::vector<OpId> ops);

  const Problem& problem_;
  std::vector<std::vector<int>> next_, previous_;  // blocks, by block
  std::vector<std::int64_t> micro_batches_;        // that a step may have
  std::vector<double> parameters_;                 // elements, by block
  std::vector<double> speeds_;                     // by device
  double dearest_cut_ = 0;                         // most bytes of `cut_bytes`
  StageTimers timers_;
};

/// By block: its stage.
std::vector<int> stage_of_blocks(const BlockGraph& blocks, const Strategy& strategy);

/// Ways to divide `devices` into two groups: halves, the first host and the others, the first kind
/// and the others, the last device and the others; each once.
std::vector<std::pair<std::vector<DeviceId>, std::vector<DeviceId>>> ways_to_divide(
    const Cluster& cluster, const std::vector<DeviceId>& devices);

/// Devices that some stage has, ascending.
std::vector<DeviceId> used_devices(const Strategy& strategy);

/// Devices that no stage has, ascending.
std::vector<DeviceId> unused_devices(const Cluster& cluster, const Strategy& strategy);

}  // namespace agpcs
