// SPDX-License-Identifier: Apache-2.0
// StrategyMoves: which moves a strategy has, and what they make of it.
#pragma once

#include "ir/base/rng.h"
#include "planner/problem/problem.h"
#include "planner/problem/stage_timers.h"
#include "planner/refine/moves/strategy_move.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace agpcs {

/// A list for each kind, of that type alone: there are thousands of moves, of which few are drawn.
template <typename V>
struct ListsOf;
template <typename... M>
struct ListsOf<std::variant<M...>> {
  using Type = std::tuple<std::vector<M>...>;
};
using MoveLists = ListsOf<StrategyMove>::Type;

/// All moves from one strategy, numbered kind by kind, and which of them turned out to change
/// nothing.
struct MovesFrom {
  MoveLists lists;
  std::array<int, kMoveKindCount + 1> first = {};  ///< number of each kind's first; of all
  enum class Effect : char { kUnknown, kSome, kNothing };
  std::vector<Effect> effects;  ///< by number
};

/// A move that was drawn from `MovesFrom`.
struct DrawnMove {
  StrategyMove move;
  int number = 0;
  std::optional<Strategy> result;  ///< what it leads to, where drawing had to know
};

/// The moves of one problem. If the blocks or devices of a stage change, its shares are balanced by
/// speed. If the cuts or devices of a strategy change, it loses its buckets, so that its gradients
/// are grouped anew. Not for concurrent use. Refers to `problem`.
class StrategyMoves {
 public:
  explicit StrategyMoves(const Problem& problem);

  /// Returns the moves from `strategy`, some of which may change nothing. `grouped`: `strategy`
  /// with its buckets. `starved`: a stage that has too few micro-batches in flight (`RoughStep`).
  MovesFrom all(const Strategy& strategy, const Strategy& grouped, int starved = kNoStage) const {
    MovesFrom from;
    list(strategy, grouped, starved, from);
    return from;
  }
  /// The same, into lists that may hold others, whose memory they take over.
  void list(const Strategy& strategy, const Strategy& grouped, int starved, MovesFrom& from) const;
  /// Returns at most `most` different ones of `from`, each of which is possible; kinds take turns.
  /// Needs: `from` is `all(strategy, grouped)`.
  std::vector<DrawnMove> draw(const Strategy& strategy, const Strategy& grouped, MovesFrom& from,
                              std::size_t most, Rng& rng);
  /// Returns the changed strategy, which verifies, or nothing if the move is impossible or changes
  /// nothing.
  std::optional<Strategy> apply(const Strategy& strategy, const Strategy& grouped,
                                const StrategyMove& move);
  StageTimers& timers() { return timers_; }

 private:
  using Changed = std::optional<Strategy>;
  Changed result_of(const Strategy& strategy, const ShiftCut& move);
  Changed result_of(const Strategy& strategy, const MoveBlock& move);
  Changed result_of(const Strategy& strategy, const MergeStages& move);
  Changed result_of(const Strategy& strategy, const SplitStage& move);
  Changed result_of(const Strategy& strategy, const MoveDevices& move);
  Changed result_of(const Strategy& strategy, const SwapDevices& move);
  Changed result_of(const Strategy& strategy, const SwapGroups& move);
  Changed result_of(const Strategy& strategy, const SetShares& move);
  Changed result_of(const Strategy& strategy, const SetMicroBatches& move);
  Changed result_of(const Strategy& strategy, const SetMemory& move);
  Changed result_of(const Strategy& strategy, const Recut& move);
  Changed result_of(const Strategy& strategy, const Restage& move);
  static Changed result_of(const Strategy& strategy, const MoveSamples& move);
  static Changed result_of(const Strategy& strategy, const SetSchedule& move);
  static Changed result_of(const Strategy& grouped, const MergeBuckets& move);
  static Changed result_of(const Strategy& grouped, const SplitBucket& move);
  static Changed result_of(const Strategy& grouped, const SwapBuckets& move);
  static Changed result_of(const Strategy& grouped, const SetAlgorithm& move);

  /// Returns `changed`, or nothing if it differs from `strategy` only in its buckets.
  static Changed unless_same(Changed changed, const Strategy& strategy);
  Changed with_groups(const Strategy& strategy, std::vector<std::vector<DeviceId>> groups,
                      CutRule rule);
  double cut_penalty(int block) const;
  double speed_of(const std::vector<DeviceId>& devices) const;

  int cut_for(const std::vector<int>& blocks, const std::vector<DeviceId>& first,
              const std::vector<DeviceId>& second) const;
  /// Balances the shares of the stages in `changed` and drops the buckets.
  Changed balanced(Strategy strategy, const std::vector<int>& changed);
  void balance(Strategy& strategy, const std::vector<int>& stages);

  const Problem& problem_;
  std::vector<std::vector<int>> next_, previous_;  // neighbours of each block
  std::vector<std::int64_t> micro_batches_;        // numbers of micro-batches that a step may have
  std::vector<double> parameters_;                 // elements, by block
  std::vector<double> speeds_;                     // by device
  std::vector<int> alike_;                         // classes of hosts (`alike_hosts`)
  double dearest_cut_ = 0;                         // the most bytes of `cut_bytes`
  OperatorTimes times_;
  StageTimers timers_;
};

/// Returns the stage of each block.
std::vector<int> stage_of_blocks(const BlockGraph& blocks, const Strategy& strategy);

/// Returns ways to divide `devices` into two groups, each once: halves, the first host and the
/// others, the first kind and the others, the last device and the others.
std::vector<std::pair<std::vector<DeviceId>, std::vector<DeviceId>>> ways_to_divide(
    const Cluster& cluster, const std::vector<DeviceId>& devices);

/// Returns those of `devices`, the devices of one stage or of none, that `move` moves.
std::vector<DeviceId> moving_devices(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                     const MoveDevices& move);

/// Returns the devices that some stage has, ascending.
std::vector<DeviceId> used_devices(const Strategy& strategy);

/// Returns, by host, the first host that is alike (`alike_hosts`) and whose devices do the same.
std::vector<int> same_hosts(const Cluster& cluster, const Strategy& strategy,
                            const std::vector<int>& alike);

/// Returns the devices that no stage has, ascending.
std::vector<DeviceId> unused_devices(const Cluster& cluster, const Strategy& strategy);

}  // namespace agpcs
