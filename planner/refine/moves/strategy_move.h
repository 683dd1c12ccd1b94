// SPDX-License-Identifier: Apache-2.0
// StrategyMove: one change of a strategy. These are the actions of the AGPCS paper's agent (section
// 3.2), which change the cuts of the graph and the schedule of communication.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/strategy/strategy.h"

#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace agpcs {

/// Stands for no stage, for all stages or for all buckets, where a move may name one.
inline constexpr int kNoStage = -1, kAllStages = -1, kAllBuckets = -1;

enum class Neighbour : std::uint8_t { kNext, kPrevious };

/// Moves blocks over the cut between `stage` and the next stage. With `kNext` the last blocks of
/// `stage` go on; with `kPrevious` the first blocks of the next stage come back.
struct ShiftCut {
  /// One block, or as many as have that part of their stage's FLOPs.
  enum class Amount : std::uint8_t { kOneBlock, kEighth, kQuarter, kHalf };
  int stage = 0;
  Neighbour to = Neighbour::kNext;
  Amount amount = Amount::kOneBlock;
};
double part_of(ShiftCut::Amount amount);  ///< 1/8, 1/4 or 1/2; 0 for one block

/// Moves a block to the next or the previous stage.
struct MoveBlock {
  int block = 0;
  Neighbour to = Neighbour::kNext;
};

/// Makes one stage of `stage` and the next.
struct MergeStages {
  int stage = 0;
};

/// Makes two stages of one and divides its devices (`ways_to_divide`; the way after the last gives
/// the second stage the unused devices). If `swapped`, the second group of devices comes first.
struct SplitStage {
  int stage = 0;
  int way = 0;
  bool swapped = false;
};

/// A device, alone or with those devices of its stage that are of its kind on its host, of its
/// kind, or on its host. Searches do not list the last.
enum class DeviceUnit : std::uint8_t { kAlone, kKindOnHost, kKind, kHost };

/// Moves devices to stage `to`, or out of use (`kNoStage`).
struct MoveDevices {
  DeviceId device = 0;
  DeviceUnit unit = DeviceUnit::kAlone;
  int to = kNoStage;
};

/// Exchanges two devices, which are in different stages; one of them may be in none.
struct SwapDevices {
  DeviceId first = 0, second = 0;
};

/// Exchanges all devices of two stages.
struct SwapGroups {
  int first = 0, second = 0;
};

/// In `stage`, device `from` gives samples of each micro-batch to device `to`. A device that gives
/// all it has leaves the stage; searches do not list that.
struct MoveSamples {
  int stage = 0;
  DeviceId from = 0, to = 0;
  std::int64_t samples = 0;
};

enum class ShareRule : std::uint8_t { kBySpeed, kEqual };

/// Gives the devices of a stage new shares.
struct SetShares {
  int stage = 0;
  ShareRule rule = ShareRule::kBySpeed;
};

/// Changes the number of micro-batches in a step. Shares stay in proportion, or are balanced by
/// speed, which is what searches list.
struct SetMicroBatches {
  std::int64_t count = 1;
  bool in_proportion = false;
};

struct SetSchedule {
  Schedule schedule = Schedule::k1F1B;
};

/// How many micro-batches a stage has in flight after a move. If it has one more, so has every
/// earlier stage; if it has fewer, no later stage has more than it has.
enum class InFlight : std::uint8_t {
  kTextbook,  ///< what 1F1B's textbook says
  kOneMore,
  kOneMoreAStage,  ///< each earlier stage has one more for each stage from it to this one
  kTwoMoreAStage,
  kOneFewer,
  kHalfAsMany,
};

/// Lets the devices of a stage, or of all stages, keep less or more: recompute their activations,
/// have them in the memory of hosts or keep them, divide the optimizer's state and gradients among
/// them or keep them whole, have fewer or more micro-batches in flight. One of these, as a rule.
struct SetMemory {
  int stage = kAllStages;
  std::optional<Recomputation> recompute = std::nullopt;
  std::optional<StateLevel> state = std::nullopt;
  std::optional<InFlight> in_flight = std::nullopt;
  std::optional<bool> state_in_host = std::nullopt;
};

/// The order of device groups after `Recut`. Rotated to the left, the first group becomes the last.
enum class GroupOrder : std::uint8_t { kKept, kRotatedLeft, kRotatedRight, kReversed };
/// A stage has work in proportion to the speed of its devices, or parameters in proportion to their
/// memory.
enum class CutRule : std::uint8_t { kBySpeed, kByMemory };

/// Makes all cuts anew.
struct Recut {
  GroupOrder order = GroupOrder::kKept;
  CutRule rule = CutRule::kBySpeed;
};

enum class DeviceOrder : std::uint8_t { kOfCluster, kReversed, kFastestFirst };

/// Makes `stages` stages of equally many devices each, of those in use or of all.
struct Restage {
  int stages = 1;
  DeviceOrder order = DeviceOrder::kOfCluster;
  CutRule rule = CutRule::kBySpeed;
  bool all_devices = false;
};

/// Bucket `into` takes in `from`, the next bucket of its stage.
struct MergeBuckets {
  int into = 0, from = 0;
};

/// Makes two buckets of one; the second begins with gradient `gradient` of the first.
struct SplitBucket {
  int bucket = 0;
  int gradient = 1;
};

/// Exchanges two buckets that are neighbours in the order of their stage.
struct SwapBuckets {
  int first = 0, second = 0;
};

/// Reduces a bucket of `stage`, or all of them, by another algorithm.
struct SetAlgorithm {
  int stage = 0;
  int bucket = kAllBuckets;
  AllReduce algorithm = AllReduce::kRing;
};

/// The last four change the schedule of communication, the others the cuts. Policies number the
/// kinds in this order.
using StrategyMove =
    std::variant<ShiftCut, MoveBlock, MergeStages, SplitStage, MoveDevices, SwapDevices, SwapGroups,
                 MoveSamples, SetShares, SetMicroBatches, SetSchedule, SetMemory, Recut, Restage,
                 MergeBuckets, SplitBucket, SwapBuckets, SetAlgorithm>;
inline constexpr int kMoveKindCount = static_cast<int>(std::variant_size_v<StrategyMove>);

/// The number of a kind of moves: its index in `StrategyMove`.
template <typename M>
inline constexpr std::size_t kKindOf = StrategyMove(M()).index();

/// Returns whether a move changes the schedule of communication alone.
inline bool changes_buckets(const StrategyMove& move) {
  return move.index() >= kKindOf<MergeBuckets>;
}

/// Prints a move: "move v100/0 and its kind to s1", "split b0 at gradient 4". Different moves have
/// different texts.
std::string print_move(const StrategyMove& move, const Cluster& cluster);

}  // namespace agpcs
