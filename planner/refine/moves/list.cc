// SPDX-License-Identifier: Apache-2.0
// Lists the moves from a strategy. The first of several devices that a stage cannot tell apart
// (equal kind, host and samples) stands for all of them, and the first of several hosts that are
// alike and do the same stands for all of them, so that there are few moves on large clusters.
#include "ir/base/at.h"
#include "planner/refine/moves/memory_moves.h"
#include "planner/refine/moves/moves.h"
#include "planner/seed/candidates.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace agpcs {
namespace {

/// The most moves of one kind from which some are drawn. It keeps listing cheap on the largest
/// problems.
constexpr std::size_t kMostOfAKind = 4096;
/// The most devices, or classes of devices, that are told apart in one stage.
constexpr std::size_t kMostClasses = 64;

constexpr std::array kAmounts = {ShiftCut::Amount::kOneBlock, ShiftCut::Amount::kEighth,
                                 ShiftCut::Amount::kQuarter, ShiftCut::Amount::kHalf};
constexpr std::array kUnits = {DeviceUnit::kAlone, DeviceUnit::kKindOnHost, DeviceUnit::kKind};
constexpr std::array kCutRules = {CutRule::kBySpeed, CutRule::kByMemory};
constexpr std::array kDeviceOrders = {DeviceOrder::kOfCluster, DeviceOrder::kReversed,
                                      DeviceOrder::kFastestFirst};

class MoveLister {
 public:
  MoveLister(const Problem& problem, const Strategy& strategy, const Strategy& grouped,
             const std::vector<std::vector<int>>& next,
             const std::vector<std::vector<int>>& previous, const std::vector<int>& alike,
             const std::vector<double>& parameters, MoveLists& moves)
      : problem_(problem),
        s_(strategy),
        grouped_(grouped),
        next_(next),
        previous_(previous),
        parameters_(parameters),
        stages_(static_cast<int>(strategy.stages.size())),
        same_(same_hosts(problem.cluster, strategy, alike)),
        moves_(moves) {}

  /// Fills the lists, which are empty.
  void run(const std::vector<std::int64_t>& micro_batches, int starved) {
    list_boundaries();
    list_blocks();
    list_devices();
    list_shares();
    list_settings(micro_batches);
    list_memory(starved);
    list_arrangements();
    list_buckets();
  }

 private:
  template <typename M>
  void add(const M& move) {
    if (!is_full<M>()) std::get<std::vector<M>>(moves_).push_back(move);
  }

  template <typename M>
  bool is_full() const {
    return std::get<std::vector<M>>(moves_).size() == kMostOfAKind;
  }
  void list_memory(int starved) {
    auto& moves = std::get<std::vector<SetMemory>>(moves_);
    add_memory_moves(problem_, s_, parameters_, starved, moves);
    if (moves.size() > kMostOfAKind) moves.resize(kMostOfAKind);
  }

  /// Returns whether a plan would be long, and longer than the current one.
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
        for (const Neighbour to : {Neighbour::kNext, Neighbour::kPrevious}) {
          if (blocks[at(to == Neighbour::kNext ? s : s + 1)] < 2) continue;
          for (const auto amount : kAmounts) add(ShiftCut{s, to, amount});
        }
        add(MergeStages{s});
      }
      for (int other = s + 1; other < stages_; ++other) add(SwapGroups{s, other});
      if (blocks[at(s)] < 2) continue;
      const auto& devices = s_.stages[at(s)].devices;
      const int ways = static_cast<int>(ways_to_divide(problem_.cluster, devices).size());
      for (int way = 0; may_split && way < ways + (some_unused ? 1 : 0); ++way) {
        add(SplitStage{s, way, false});
        add(SplitStage{s, way, true});
      }
    }
  }

  /// Lists blocks that may leave their stage, except the one that a shift by one block moves.
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
        add(MoveBlock{b, Neighbour::kNext});
      }
      if (stage > 0 && b != first[at(stage)] && leaves(previous_[at(b)], -1)) {
        add(MoveBlock{b, Neighbour::kPrevious});
      }
    }
  }

  /// Adds `what` to what was seen if it is not among it, and returns whether it is new.
  template <typename T>
  static bool is_new(const T& what, std::vector<T>& seen) {
    if (std::find(seen.begin(), seen.end(), what) != seen.end()) return false;
    seen.push_back(what);
    return true;
  }

  /// Returns the first device of each class of `sources_[stage]`.
  std::vector<DeviceId> classes_of(int stage) const {
    std::vector<std::pair<int, int>> seen;
    std::vector<DeviceId> firsts;
    for (const DeviceId id : *sources_[at(stage)]) {
      const Device& device = problem_.cluster.devices[at(id)];
      if (is_new({same_[at(device.host)], device.kind}, seen)) firsts.push_back(id);
      if (firsts.size() == kMostClasses) break;
    }
    return firsts;
  }

  void list_devices() {
    sources_.reserve(s_.stages.size() + 1);
    for (const StageSpec& spec : s_.stages) sources_.push_back(&spec.devices);
    const std::vector<DeviceId> unused = unused_devices(problem_.cluster, s_);
    sources_.push_back(&unused);
    std::vector<std::vector<DeviceId>> classes;
    classes.reserve(sources_.size());
    for (int s = 0; s <= stages_; ++s) classes.push_back(classes_of(s));
    for (int from = 0; from <= stages_; ++from) {
      for (int to = kNoStage; to < stages_; ++to) {
        const bool from_none = from == stages_;
        if (from == to || (from_none && to == kNoStage) || is_full<MoveDevices>()) continue;
        for (const DeviceId device : classes[at(from)]) {
          add_device_moves(device, from, to);
        }
      }
      for (int other = from + 1; other <= stages_ && !is_full<SwapDevices>(); ++other) {
        add_swaps(classes[at(from)], classes[at(other)]);
      }
    }
    sources_.clear();
  }

  /// Adds moves of `device` alone, with its like on its host, and with its like on all hosts: each
  /// set of devices once, and never all that a stage has.
  void add_device_moves(DeviceId device, int from, int to) {
    const std::vector<DeviceId>& source = *sources_[at(from)];
    const Device& moved = problem_.cluster.devices[at(device)];
    std::array<std::size_t, kUnits.size()> count = {1, 0, 0};
    bool first_of_kind = true;
    for (const DeviceId id : source) {
      const Device& other = problem_.cluster.devices[at(id)];
      if (other.kind != moved.kind) continue;
      first_of_kind = first_of_kind && id >= device;
      ++count[2];
      if (other.host == moved.host) ++count[1];
    }
    for (std::size_t i = 0; i < kUnits.size(); ++i) {
      if (from < stages_ && count[i] == source.size()) continue;
      if (i > 0 && count[i] == count[i - 1]) continue;
      if (kUnits[i] == DeviceUnit::kKind && !first_of_kind) continue;
      add(MoveDevices{device, kUnits[i], to});
    }
  }

  void add_swaps(const std::vector<DeviceId>& a, const std::vector<DeviceId>& b) {
    for (const DeviceId x : a) {
      for (const DeviceId y : b) {
        const Device &first = problem_.cluster.devices[at(x)],
                     &second = problem_.cluster.devices[at(y)];
        const bool alike = first.host == second.host && first.kind == second.kind;
        if (!alike) add(SwapDevices{x, y});
      }
    }
  }

  void list_shares() {
    std::vector<std::tuple<int, int, std::int64_t>> seen;
    std::vector<int> replicas;
    for (int s = 0; s < stages_; ++s) {
      const StageSpec& spec = s_.stages[at(s)];
      seen.clear();
      replicas.clear();
      for (std::size_t i = 0; i < spec.devices.size() && replicas.size() < kMostClasses; ++i) {
        const Device& device = problem_.cluster.devices[at(spec.devices[i])];
        if (is_new({same_[at(device.host)], device.kind, spec.shares[i]}, seen)) {
          replicas.push_back(static_cast<int>(i));
        }
      }
      // Equal devices with equal shares may still differ by one sample, so a class gives to its
      // like.
      if (replicas.size() == 1 && spec.devices.size() > 1) replicas.push_back(1);
      for (const int from : replicas) {
        for (const int to : replicas) {
          if (from != to) add_shares(s, from, to);
        }
      }
      if (spec.devices.size() > 1) {
        add(SetShares{s, ShareRule::kBySpeed});
        add(SetShares{s, ShareRule::kEqual});
      }
    }
  }

  /// Adds moves of one sample and of parts of those that replica `from` has.
  void add_shares(int stage, int from, int to) {
    const StageSpec& spec = s_.stages[at(stage)];
    const std::int64_t samples = spec.shares[at(from)];
    std::int64_t last = 0;
    for (const std::int64_t amount : {std::int64_t{1}, samples / 16, samples / 4}) {
      if (amount <= last || amount >= samples) continue;
      last = amount;
      add(MoveSamples{stage, spec.devices[at(from)], spec.devices[at(to)], amount});
    }
  }

  void list_settings(const std::vector<std::int64_t>& micro_batches) {
    const auto here = std::find(micro_batches.begin(), micro_batches.end(), s_.micro_batches);
    const auto position = here - micro_batches.begin();
    const auto count = static_cast<std::ptrdiff_t>(micro_batches.size());
    for (const std::ptrdiff_t step : {-2, -1, 1, 2}) {
      if (position + step < 0 || position + step >= count) continue;
      const std::int64_t number = micro_batches[static_cast<std::size_t>(position + step)];
      if (!is_too_long(stages_, number)) add(SetMicroBatches{number});
    }
    if (stages_ > 1 && s_.micro_batches > 1) {
      const bool is_1f1b = s_.schedule == Schedule::k1F1B;
      add(SetSchedule{is_1f1b ? Schedule::kGPipe : Schedule::k1F1B});
    }
  }

  void list_arrangements() {
    for (const CutRule rule : kCutRules) {
      if (stages_ < 2) break;
      add(Recut{GroupOrder::kKept, rule});
      add(Recut{GroupOrder::kRotatedLeft, rule});
      add(Recut{GroupOrder::kRotatedRight, rule});
      if (stages_ > 2) add(Recut{GroupOrder::kReversed, rule});  // two are reversed when rotated
    }
    const int used = static_cast<int>(used_devices(s_).size());
    const int all = problem_.cluster.device_count();
    const int most = std::min(all, problem_.blocks.size());
    for (int stages = 1; stages <= most && !is_too_long(stages, s_.micro_batches); stages *= 2) {
      for (const bool of_all : {false, true}) {
        if (of_all ? used == all : stages > used) continue;
        if (stages == 1) {
          add(Restage{1, DeviceOrder::kOfCluster, CutRule::kBySpeed, of_all});
          continue;
        }
        for (const DeviceOrder order : kDeviceOrders) {
          for (const CutRule rule : kCutRules) add(Restage{stages, order, rule, of_all});
        }
        if (stages == 2 && (of_all ? all : used) > 2 && problem_.blocks.size() > 2) {
          for (const DeviceOrder order : kDeviceOrders) {
            add(Restage{3, order, CutRule::kBySpeed, of_all});
          }
        }
      }
    }
  }

  void list_buckets() {
    std::vector<int> before(at(stages_), -1);  // the last bucket of each stage so far
    std::vector<std::multiset<AllReduce>> used(at(stages_));  // algorithms by stage
    for (int b = 0; b < static_cast<int>(grouped_.buckets.size()); ++b) {
      const Bucket& bucket = grouped_.buckets[at(b)];
      if (s_.stages[at(bucket.stage)].devices.size() < 2 || bucket.is_shared()) continue;
      used[at(bucket.stage)].insert(bucket.algorithm);
      int& previous = before[at(bucket.stage)];
      if (previous >= 0) {
        if (can_merge(grouped_.buckets[at(previous)], bucket)) {
          add(MergeBuckets{previous, b});
        }
        // Divided gradients are summed in the order in which they are made.
        const bool fills = s_.stages[at(bucket.stage)].state >= StateLevel::kGradients;
        if (!fills) add(SwapBuckets{previous, b});
      }
      previous = b;
      add_splits(b, static_cast<int>(bucket.parameters.size()));
      for (const AllReduce algorithm : kAllReduces) {
        if (algorithm != bucket.algorithm) add(SetAlgorithm{bucket.stage, b, algorithm});
      }
    }
    for (int stage = 0; stage < stages_; ++stage) {
      const std::multiset<AllReduce>& algorithms = used[at(stage)];
      if (algorithms.size() < 2) continue;  // with one bucket it is listed above
      for (const AllReduce algorithm : kAllReduces) {
        if (algorithms.count(algorithm) == algorithms.size()) continue;
        add(SetAlgorithm{stage, kAllBuckets, algorithm});
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
      add(SplitBucket{bucket, place});
    }
  }

  const Problem& problem_;
  const Strategy& s_;
  const Strategy& grouped_;
  const std::vector<std::vector<int>>& next_;
  const std::vector<std::vector<int>>& previous_;
  const std::vector<double>& parameters_;  // elements, by block
  int stages_;
  std::vector<int> same_;  // by host: the first that is alike and does the same
  std::vector<const std::vector<DeviceId>*> sources_;  // devices by stage; last: of no stage
  MoveLists& moves_;
};

}  // namespace

void StrategyMoves::list(const Strategy& strategy, const Strategy& grouped, int starved,
                         MovesFrom& from) const {
  std::apply([](auto&... lists) { (lists.clear(), ...); }, from.lists);
  MoveLister(problem_, strategy, grouped, next_, previous_, alike_, parameters_, from.lists)
      .run(micro_batches_, starved);
  std::size_t kind = 0;
  const auto count = [&](const auto& list) {
    from.first[kind + 1] = from.first[kind] + static_cast<int>(list.size());
    ++kind;
  };
  std::apply([&](const auto&... lists) { (count(lists), ...); }, from.lists);
  from.effects.assign(at(from.first.back()), MovesFrom::Effect::kUnknown);
}

}  // namespace agpcs
