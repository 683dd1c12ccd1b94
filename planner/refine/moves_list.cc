// SPDX-License-Identifier: Apache-2.0
// The moves from a strategy. Devices that a stage cannot tell apart (equal kind, host and samples)
// are represented by the first of them, so that the moves are few on large clusters.
#include "ir/at.h"
#include "planner/candidates.h"
#include "planner/strategy_moves.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// Of one kind at most, before some are drawn: keeps listing cheap on the largest problems.
constexpr std::size_t kMostOfAKind = 4096;
/// Devices or classes of them that are told apart in one stage.
constexpr std::size_t kMostClasses = 64;

class MoveLister {
 public:
  MoveLister(const Problem& problem, const Strategy& strategy, const Strategy& grouped,
             const std::vector<std::vector<int>>& next,
             const std::vector<std::vector<int>>& previous)
      : problem_(problem),
        s_(strategy),
        grouped_(grouped),
        next_(next),
        previous_(previous),
        stages_(static_cast<int>(strategy.stages.size())) {}

  std::array<std::vector<Move>, kMoveKindCount> run(
      const std::vector<std::int64_t>& micro_batches) {
    list_boundaries();
    list_blocks();
    list_devices();
    list_shares();
    list_settings(micro_batches);
    list_buckets();
    return std::move(moves_);
  }

 private:
  void add(MoveKind kind, int a = 0, int b = 0, int c = 0, int d = 0) {
    std::vector<Move>& list = moves_[at(static_cast<int>(kind))];
    if (list.size() < kMostOfAKind) list.push_back({static_cast<int>(kind), a, b, c, d});
  }

  bool is_full(MoveKind kind) const {
    return moves_[at(static_cast<int>(kind))].size() == kMostOfAKind;
  }
  /// A plan that is long, and longer than the one at hand.
  bool is_too_long(int stages, std::int64_t micro_batches) const {
    return is_long(stages, micro_batches) && stages * micro_batches > stages_ * s_.micro_batches;
  }

  void list_boundaries() {
    std::vector<int> blocks(at(stages_), 0);
    for (const int stage : stage_of_blocks(problem_.blocks, s_)) ++blocks[at(stage)];
    const bool some_unused = !unused_devices(problem_.cluster, s_).empty();
    const bool may_split = !is_too_long(stages_ + 1, s_.micro_batches);
    for (int s = 0; s < stages_; ++s) {
      if (s + 1 < stages_) {
        for (int direction = 0; direction < 2; ++direction) {
          if (blocks[at(s + direction)] < 2) continue;
          for (int amount = 0; amount < 4; ++amount) add(MoveKind::kShift, s, direction, amount);
        }
        add(MoveKind::kMerge, s);
      }
      for (int other = s + 1; other < stages_; ++other) add(MoveKind::kSwapGroups, s, other);
      if (blocks[at(s)] < 2) continue;
      const auto& devices = s_.stages[at(s)].devices;
      const int ways = static_cast<int>(ways_to_divide(problem_.cluster, devices).size());
      for (int way = 0; may_split && way < ways + (some_unused ? 1 : 0); ++way) {
        add(MoveKind::kSplit, s, way, 0);
        add(MoveKind::kSplit, s, way, 1);
      }
    }
  }

  /// Blocks that may leave their stage, but for the one that a shift by one block moves.
  void list_blocks() {
    if (stages_ < 2) return;
    const std::vector<int> stage_of = stage_of_blocks(problem_.blocks, s_);
    std::vector<int> last(at(stages_), -1), first(at(stages_), -1);
    for (int b = 0; b < problem_.blocks.size(); ++b) {
      const int stage = stage_of[at(b)];
      last[at(stage)] = b;
      if (first[at(stage)] < 0) first[at(stage)] = b;
    }
    for (int b = 0; b < problem_.blocks.size(); ++b) {
      const int stage = stage_of[at(b)];
      if (first[at(stage)] == last[at(stage)]) continue;
      const auto leaves = [&](const std::vector<int>& others, int sign) {
        return std::all_of(others.begin(), others.end(),
                           [&](int other) { return sign * stage_of[at(other)] > sign * stage; });
      };
      if (stage + 1 < stages_ && b != last[at(stage)] && leaves(next_[at(b)], 1)) {
        add(MoveKind::kMoveBlock, b, 1);
      }
      if (stage > 0 && b != first[at(stage)] && leaves(previous_[at(b)], -1)) {
        add(MoveKind::kMoveBlock, b, -1);
      }
    }
  }

  /// The first device of each class of `sources_[stage]`.
  std::vector<DeviceId> classes_of(int stage) const {
    std::set<std::pair<int, int>> seen;
    std::vector<DeviceId> firsts;
    for (const DeviceId id : sources_[at(stage)]) {
      const Device& device = problem_.cluster.devices[at(id)];
      if (seen.emplace(device.host, device.kind).second) firsts.push_back(id);
      if (firsts.size() == kMostClasses) break;
    }
    return firsts;
  }

  void list_devices() {
    for (const StageSpec& spec : s_.stages) sources_.push_back(spec.devices);
    sources_.push_back(unused_devices(problem_.cluster, s_));
    std::vector<std::vector<DeviceId>> classes;
    for (int s = 0; s <= stages_; ++s) classes.push_back(classes_of(s));
    for (int from = 0; from <= stages_; ++from) {
      for (int to = -1; to < stages_; ++to) {
        const bool from_none = from == stages_;
        if (from == to || (from_none && to < 0) || is_full(MoveKind::kMoveDevices)) continue;
        for (const DeviceId device : classes[at(from)]) {
          add_device_moves(device, from, to);
        }
      }
      for (int other = from + 1; other <= stages_ && !is_full(MoveKind::kSwapDevices); ++other) {
        add_swaps(classes[at(from)], classes[at(other)]);
      }
    }
  }

  /// Of `device` alone, with its like on its host, with its like on all hosts: each set of devices
  /// once, and never all that a stage has.
  void add_device_moves(DeviceId device, int from, int to) {
    const std::vector<DeviceId>& source = sources_[at(from)];
    const Device& moved = problem_.cluster.devices[at(device)];
    std::array<std::size_t, 3> count = {1, 0, 0};
    bool first_of_kind = true;
    for (const DeviceId id : source) {
      const Device& other = problem_.cluster.devices[at(id)];
      if (other.kind != moved.kind) continue;
      first_of_kind = first_of_kind && id >= device;
      ++count[2];
      if (other.host == moved.host) ++count[1];
    }
    for (int unit = 0; unit < 3; ++unit) {
      if (from < stages_ && count[at(unit)] == source.size()) continue;
      if (unit > 0 && count[at(unit)] == count[at(unit - 1)]) continue;
      if (unit == 2 && !first_of_kind) continue;
      add(MoveKind::kMoveDevices, device, to, unit);
    }
  }

  void add_swaps(const std::vector<DeviceId>& a, const std::vector<DeviceId>& b) {
    for (const DeviceId x : a) {
      for (const DeviceId y : b) {
        const Device &first = problem_.cluster.devices[at(x)],
                     &second = problem_.cluster.devices[at(y)];
        const bool alike = first.host == second.host && first.kind == second.kind;
        if (!alike) add(MoveKind::kSwapDevices, x, y);
      }
    }
  }

  void list_shares() {
    for (int s = 0; s < stages_; ++s) {
      const StageSpec& spec = s_.stages[at(s)];
      std::set<std::tuple<int, int, std::int64_t>> seen;
      std::vector<int> replicas;
      for (std::size_t i = 0; i < spec.devices.size() && replicas.size() < kMostClasses; ++i) {
        const Device& device = problem_.cluster.devices[at(spec.devices[i])];
        if (seen.emplace(device.host, device.kind, spec.shares[i]).second) {
          replicas.push_back(static_cast<int>(i));
        }
      }
      // Equal devices with equal shares may still differ by one sample: a class gives to its like.
      if (replicas.size() == 1 && spec.devices.size() > 1) replicas.push_back(1);
      for (const int from : replicas) {
        for (const int to : replicas) {
          if (from != to) add_shares(s, from, to, spec.shares[at(from)]);
        }
      }
      if (spec.devices.size() > 1) {
        add(MoveKind::kRebalance, s, 0);
        add(MoveKind::kRebalance, s, 1);
      }
    }
  }

  void add_shares(int stage, int from, int to, std::int64_t samples) {
    int last = 0;
    for (const std::int64_t amount : {std::int64_t{1}, samples / 16, samples / 4}) {
      if (amount <= last || amount >= samples) continue;
      last = static_cast<int>(amount);
      add(MoveKind::kShares, stage, from, to, last);
    }
  }

  void list_settings(const std::vector<std::int64_t>& micro_batches) {
    const auto here = std::find(micro_batches.begin(), micro_batches.end(), s_.micro_batches);
    const auto position = here - micro_batches.begin();
    const auto count = static_cast<std::ptrdiff_t>(micro_batches.size());
    for (const std::ptrdiff_t step : {-2, -1, 1, 2}) {
      if (position + step < 0 || position + step >= count) continue;
      const std::int64_t number = micro_batches[static_cast<std::size_t>(position + step)];
      if (!is_too_long(stages_, number)) add(MoveKind::kMicroBatches, static_cast<int>(number));
    }
    if (stages_ > 1 && s_.micro_batches > 1) add(MoveKind::kSchedule);
    for (int s = 0; s < stages_; ++s) add(MoveKind::kRecompute, s);
    const auto recomputing = std::count_if(s_.stages.begin(), s_.stages.end(),
                                           [](const StageSpec& spec) { return spec.recompute; });
    if (stages_ > 1 && recomputing > 0) add(MoveKind::kRecompute, -1, 0);
    if (stages_ > 1 && recomputing < stages_) add(MoveKind::kRecompute, -1, 1);
    list_arrangements();
  }

  void list_arrangements() {
    for (int weight = 0; weight < 2 && stages_ > 1; ++weight) {
      for (int order = 0; order < 4; ++order) {
        const bool again = order > stages_ || (order == 3 && stages_ == 2);  // as with fewer turns
        if (!again) add(MoveKind::kRecut, order, weight);
      }
    }
    const int used = static_cast<int>(used_devices(s_).size());
    const int all = problem_.cluster.device_count();
    const int most = std::min(all, problem_.blocks.size());
    for (int stages = 1; stages <= most && !is_too_long(stages, s_.micro_batches); stages *= 2) {
      for (const int of_all : {0, 1}) {
        if (of_all == 1 ? used == all : stages > used) continue;
        for (int order = 0; order < (stages > 1 ? 3 : 1); ++order) {
          for (int weight = 0; weight < (stages > 1 ? 2 : 1); ++weight) {
            add(MoveKind::kRestage, stages, order, weight, of_all);
          }
        }
        if (stages == 2 && (of_all == 1 ? all : used) > 2 && problem_.blocks.size() > 2) {
          for (int order = 0; order < 3; ++order) add(MoveKind::kRestage, 3, order, 0, of_all);
        }
      }
    }
  }

  void list_buckets() {
    std::vector<int> before(at(stages_), -1);  // the last bucket of each stage so far
    std::vector<std::multiset<AllReduce>> used(at(stages_));  // by stage that is reduced
    for (int b = 0; b < static_cast<int>(grouped_.buckets.size()); ++b) {
      const Bucket& bucket = grouped_.buckets[at(b)];
      if (s_.stages[at(bucket.stage)].devices.size() < 2) continue;
      used[at(bucket.stage)].insert(bucket.algorithm);
      int& previous = before[at(bucket.stage)];
      if (previous >= 0) {
        if (can_merge(grouped_.buckets[at(previous)], bucket)) {
          add(MoveKind::kMergeBuckets, previous, b);
        }
        add(MoveKind::kSwapBuckets, previous, b);
      }
      previous = b;
      add_splits(b, static_cast<int>(bucket.parameters.size()));
      for (const AllReduce algorithm : kAllReduces) {
        if (algorithm == bucket.algorithm) continue;
        add(MoveKind::kBucketAlgorithm, b, static_cast<int>(algorithm));
      }
    }
    for (int stage = 0; stage < stages_; ++stage) {
      const std::multiset<AllReduce>& algorithms = used[at(stage)];
      if (algorithms.size() < 2) continue;  // one bucket: listed above
      for (const AllReduce algorithm : kAllReduces) {
        if (algorithms.count(algorithm) == algorithms.size()) continue;
        add(MoveKind::kBucketAlgorithm, -1 - stage, static_cast<int>(algorithm));
      }
    }
  }

  bool can_merge(const Bucket& a, const Bucket& b) const {
    const auto held = [&](const Bucket& bucket) {
      return gradient_of(problem_, bucket.parameters.front()).held;
    };
    return held(a) == held(b);
  }

  void add_splits(int bucket, int gradients) {
    int last = 0;
    for (const int place : {1, gradients / 4, gradients / 2, 3 * gradients / 4, gradients - 1}) {
      if (place <= last || place >= gradients) continue;
      last = place;
      add(MoveKind::kSplitBucket, bucket, place);
    }
  }

  const Problem& problem_;
  const Strategy& s_;
  const Strategy& grouped_;
  const std::vector<std::vector<int>>& next_;
  const std::vector<std::vector<int>>& previous_;
  int stages_;
  std::vector<std::vector<DeviceId>> sources_;  // devices by stage; the last: of no stage
  std::array<std::vector<Move>, kMoveKindCount> moves_;
};

/// Whether only trying it tells that a listed move changes nothing: where shares are balanced anew.
bool may_be_idle(const Move& move) {
  const auto kind = static_cast<MoveKind>(move.kind);
  return kind == MoveKind::kMoveDevices || kind == MoveKind::kRebalance ||
         kind == MoveKind::kRecut || kind == MoveKind::kRestage;
}

}  // namespace

std::vector<Move> StrategyMoves::list(const Strategy& strategy, const Strategy& grouped,
                                      std::size_t most, Rng& rng) {
  auto by_kind = MoveLister(problem_, strategy, grouped, next_, previous_).run(micro_batches_);
  std::vector<Move> moves;
  bool any = true;
  while (any && moves.size() < most) {
    any = false;
    for (std::vector<Move>& list : by_kind) {
      if (list.empty() || moves.size() == most) continue;
      any = true;
      std::swap(list[rng.below(list.size())], list.back());
      const Move move = list.back();
      list.pop_back();
      if (!may_be_idle(move) || apply(strategy, grouped, move)) moves.push_back(move);
    }
  }
  return moves;
}

}  // namespace agpcs
