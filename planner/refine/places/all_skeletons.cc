// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/all_skeletons.h"

#include "ir/base/at.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/alike_hosts.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timers.h"
#include "planner/refine/places/help.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

/// A problem with more skeletons is not small, nor one where so many have so many blocks. Lists
/// with gaps are looked at on the way to them.
constexpr std::size_t kMostSkeletons = 8192, kMostBlocks = 32'768, kMostLists = 65'536;
/// A rough step may be so many times as long as the best one, without the part of its end that
/// divided updates may save.
constexpr double kPromises = 1.25, kSavedOfEnd = 0.5;

using Groups = std::vector<std::vector<DeviceId>>;  // by stage

/// Lists convex partitions of the blocks into stages, as stages by block.
class Cuts {
 public:
  explicit Cuts(const BlockGraph& blocks) : blocks_(blocks), stage_of_(blocks.blocks.size()) {}

  /// Returns all with up to `most_stages` stages; nothing if there are more than `most`.
  std::optional<std::vector<std::vector<int>>> up_to(int most_stages, std::size_t most) {
    most_stages_ = most_stages;
    most_ = most;
    if (!assign(0)) return std::nullopt;
    return std::move(all_);
  }

 private:
  /// Assigns blocks from `block` on. Returns whether there are few enough so far.
  bool assign(int block) {
    if (block == blocks_.size()) {
      if (is_gapless()) all_.push_back(stage_of_);
      return all_.size() <= most_ && ++lists_ <= kMostLists;
    }
    int least = 0;
    for (const BlockEdge& edge : blocks_.edges) {
      if (edge.to == block) least = std::max(least, stage_of_[at(edge.from)]);
    }
    for (int stage = least; stage < most_stages_; ++stage) {
      stage_of_[at(block)] = stage;
      if (!assign(block + 1)) return false;
    }
    return true;
  }

  bool is_gapless() const {
    const int last = *std::max_element(stage_of_.begin(), stage_of_.end());
    for (int stage = 0; stage < last; ++stage) {
      if (std::find(stage_of_.begin(), stage_of_.end(), stage) == stage_of_.end()) return false;
    }
    return true;
  }

  const BlockGraph& blocks_;
  std::vector<int> stage_of_;
  std::vector<std::vector<int>> all_;
  int most_stages_ = 0;
  std::size_t most_ = 0, lists_ = 0;
};

/// Lists groups of devices.
class GroupLists {
 public:
  explicit GroupLists(const Cluster& cluster)
      : cluster_(cluster), alike_hosts_(alike_hosts(cluster)), group_of_(cluster.devices.size()) {}

  /// Returns all lists of `stages` groups; nothing if there are more than `most`.
  std::optional<std::vector<Groups>> of(int stages, std::size_t most) {
    stages_ = stages;
    most_ = most;
    all_.clear();
    if (!assign(0)) return std::nullopt;
    return all_;
  }

 private:
  bool assign(DeviceId device) {
    if (device == cluster_.device_count()) {
      add();
      return all_.size() <= most_ && ++lists_ <= kMostLists;
    }
    const int least = device > 0 && is_like_the_last(device) ? group_of_[at(device - 1)] : -1;
    for (int group = least; group < stages_; ++group) {
      group_of_[at(device)] = group;
      if (!assign(device + 1)) return false;
    }
    return true;
  }

  bool is_like_the_last(DeviceId device) const {
    const Device &a = cluster_.devices[at(device - 1)], &b = cluster_.devices[at(device)];
    const auto same = [&](LinkId x, LinkId y) {
      if (x == y) return true;
      if (x < 0 || y < 0) return false;
      const Link &one = cluster_.links[at(x)], &other = cluster_.links[at(y)];
      return one.bandwidth == other.bandwidth && one.latency == other.latency;
    };
    return a.host == b.host && a.kind == b.kind && same(a.in, b.in) && same(a.out, b.out);
  }

  void add() {
    if (!hosts_are_in_order()) return;
    Groups groups(at(stages_));
    for (DeviceId device = 0; device < cluster_.device_count(); ++device) {
      const int group = group_of_[at(device)];
      if (group >= 0) groups[at(group)].push_back(device);
    }
    const bool complete = std::ranges::none_of(
        groups, [](const std::vector<DeviceId>& devices) { return devices.empty(); });
    if (complete) all_.push_back(std::move(groups));
  }

  /// Hosts of a class could change places.
  bool hosts_are_in_order() const {
    std::map<int, int> last;  // host by class
    for (int host = 0; host < static_cast<int>(cluster_.hosts.size()); ++host) {
      const auto [entry, first] = last.try_emplace(alike_hosts_[at(host)], host);
      if (!first && comes_before(host, std::exchange(entry->second, host))) return false;
    }
    return true;
  }
  bool comes_before(int host, int other) const {
    const auto groups = [&](int of) {
      const auto begin = group_of_.begin() + cluster_.hosts[at(of)].first_device;
      return std::vector<int>(begin, begin + cluster_.hosts[at(of)].device_count);
    };
    return groups(host) < groups(other);
  }

  const Cluster& cluster_;
  const std::vector<int> alike_hosts_;
  std::vector<int> group_of_;  // by device; -1: none
  std::vector<Groups> all_;
  int stages_ = 0;
  std::size_t most_ = 0, lists_ = 0;
};

class AllSkeletons {
 public:
  AllSkeletons(const Problem& problem, Evaluator& evaluator, const Score& best, ClimbBudget& budget)
      : problem_(problem),
        evaluator_(evaluator),
        budget_(budget),
        best_(best),
        numbers_(micro_batch_numbers(problem)),
        model_(problem),
        timers_(problem) {}

  std::optional<std::vector<Seed>> run(std::size_t most) {
    if (!find()) return std::nullopt;
    add_promises();
    std::stable_sort(promises_.begin(), promises_.end(), [](const Promise& a, const Promise& b) {
      return a.rough_seconds < b.rough_seconds;
    });
    for (const Promise& promise : promises_) {
      if (!may_be_better(promise) || ends()) break;
      complete(promise.strategy);
    }
    return bests(most);
  }

 private:
  struct Promise {
    Strategy strategy;
    double rough_seconds = 0;
  };

  /// Lists cuts and groups. Returns false if there are too many.
  bool find() {
    const int most_stages = std::min(problem_.cluster.device_count(), problem_.blocks.size());
    const std::size_t most =
        std::min(kMostSkeletons, kMostBlocks / at(problem_.blocks.size())) / numbers_.size();
    std::optional<std::vector<std::vector<int>>> cuts =
        Cuts(problem_.blocks).up_to(most_stages, most);
    if (!cuts) return false;
    std::vector<std::size_t> cuts_of(at(most_stages) + 1);  // by number of stages
    for (const std::vector<int>& cut : *cuts) ++cuts_of[stages_of(cut)];
    std::size_t all = 0;
    GroupLists lists(problem_.cluster);
    groups_.resize(cuts_of.size());
    for (int stages = 1; stages <= most_stages; ++stages) {
      std::optional<std::vector<Groups>> groups = lists.of(stages, most);
      if (!groups) return false;
      all += groups->size() * cuts_of[at(stages)];
      if (all > most) return false;
      groups_[at(stages)] = *std::move(groups);
    }
    cuts_ = *std::move(cuts);
    return true;
  }

  static std::size_t stages_of(const std::vector<int>& cut) {
    return at(*std::max_element(cut.begin(), cut.end())) + 1;
  }

  void add_promises() {
    for (const std::vector<int>& cut : cuts_) {
      if (ends()) return;
      Strategy strategy;
      strategy.stage_of = stage_of_ops(problem_.blocks, cut);
      strategy.stages.resize(stages_of(cut));
      timers_.forget_if_many();
      const std::vector<StageTimer*> timers = timers_.of(strategy);
      for (const Groups& groups : groups_[stages_of(cut)]) {
        for (const std::int64_t number : numbers_) {
          strategy.micro_batches = number;
          if (set_shares(groups, timers, strategy)) add_promise(strategy, timers);
        }
      }
    }
  }

  /// Shares are by speed, or equal where a device would have no sample. Returns false if there are
  /// too few samples, or micro-batches cannot differ.
  bool set_shares(const Groups& groups, const std::vector<StageTimer*>& timers,
                  Strategy& strategy) const {
    const std::int64_t samples = largest_micro_batch(problem_, strategy.micro_batches);
    for (std::size_t s = 0; s < groups.size(); ++s) {
      if (static_cast<std::int64_t>(groups[s].size()) > samples) return false;
      strategy.stages[s] = balanced_stage(problem_, *timers[s], groups[s], samples);
      if (strategy.stages[s].devices != groups[s]) {
        strategy.stages[s] = equal_stage(problem_, groups[s], samples);
      }
      if (strategy.stages[s].devices != groups[s]) return false;
      if (!covers(strategy.stages[s], problem_.training.batch, strategy.micro_batches))
        return false;
    }
    return true;
  }

  /// Counts the schedule that is roughly fastest.
  void add_promise(const Strategy& strategy, const std::vector<StageTimer*>& timers) {
    Promise promise{strategy, rough_seconds(strategy, timers)};
    for_each_other_schedule(strategy, [&](const Strategy& other) {
      promise.rough_seconds = std::min(promise.rough_seconds, rough_seconds(other, timers));
    });
    if (may_be_better(promise)) promises_.push_back(std::move(promise));
  }

  double rough_seconds(const Strategy& strategy, const std::vector<StageTimer*>& timers) {
    const RoughStep rough = model_.step(strategy, timers);
    return rough.seconds - (may_divide_any(strategy) ? kSavedOfEnd * rough.late : 0);
  }

  bool may_divide_any(const Strategy& strategy) const {
    return may_divide(problem_, StateLevel::kOptimizer) &&
           std::ranges::any_of(strategy.stages,
                               [](const StageSpec& spec) { return spec.devices.size() > 1; });
  }

  bool may_be_better(const Promise& promise) const {
    return !best_.fits() || promise.rough_seconds <= kPromises * best_.step_seconds;
  }

  bool ends() {
    budget_.ended = budget_.ended || (budget_.interrupted != nullptr && *budget_.interrupted);
    return budget_.ended || budget_.left <= 0;
  }

  void complete(const Strategy& strategy) {
    for_each_other_schedule(strategy, [&](const Strategy& other) { judge_if_it_fits(other); });
    judge_divided(strategy);
    if (evaluator_.lacking(strategy) <= 0) {
      judge(strategy);
      return;
    }
    --budget_.left;
    for_each_help(problem_, evaluator_, strategy,
                  [&](Strategy helped) { judge(std::move(helped)); });
  }

  /// Calls `use(Strategy)` with what a pipeline with 1F1B is with GPipe, and with whole and with
  /// parted backward passes: with as many micro-batches in flight as the textbook has, with twice
  /// as many and with all.
  template <typename Use>
  void for_each_other_schedule(Strategy strategy, Use use) const {
    if (strategy.stages.size() < 2 || strategy.micro_batches < 2) return;
    const std::vector<std::int64_t> textbook = in_flight_by_stage(strategy);
    strategy.schedule = Schedule::kGPipe;
    use(strategy);
    for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZeroBubble}) {
      strategy.schedule = schedule;
      if (schedule == Schedule::kZeroBubble && !may_part_passes(problem_, strategy)) continue;
      if (schedule == Schedule::kZeroBubble) use(strategy);
      if (!problem_.options.choose_in_flight) continue;
      for (const std::int64_t factor : {std::int64_t{2}, strategy.micro_batches}) {
        Strategy other = strategy;
        for (std::size_t s = 0; s < textbook.size(); ++s) {
          other.stages[s].in_flight = std::min(strategy.micro_batches, factor * textbook[s]);
        }
        fit_in_flight(other);
        use(other);
      }
    }
  }

  /// Judges a strategy whose stages of several devices divide their state.
  void judge_divided(const Strategy& strategy) {
    for (const StateLevel level : kDividingLevels) {
      if (!may_divide_any(strategy) || !may_divide(problem_, level)) return;
      Strategy divided = strategy;
      for (StageSpec& spec : divided.stages) {
        if (spec.devices.size() > 1) spec.state = level;
      }
      judge_if_it_fits(std::move(divided));
    }
  }

  void judge_if_it_fits(Strategy strategy) {
    if (evaluator_.lacking(strategy) <= 0) judge(std::move(strategy));
  }

  void judge(Strategy strategy) {
    if (ends()) return;
    --budget_.left;
    const Score score = evaluator_.evaluate(strategy);
    if (!score.fits()) return;
    if (is_better(score, best_)) best_ = score;
    found_.push_back({std::move(strategy), score, "", false});
  }

  std::vector<Seed> bests(std::size_t most) {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Seed& a, const Seed& b) { return is_better(a.score, b.score); });
    std::vector<Seed> bests;
    for (Seed& seed : found_) {
      if (bests.size() == most) break;
      const auto is_same = [&](const Seed& other) {
        return other.score.step_seconds == seed.score.step_seconds ||
               (other.strategy.stage_of == seed.strategy.stage_of &&
                std::ranges::equal(other.strategy.stages, seed.strategy.stages, {},
                                   &StageSpec::devices, &StageSpec::devices));
      };
      if (std::ranges::none_of(bests, is_same)) bests.push_back(std::move(seed));
    }
    return bests;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  ClimbBudget& budget_;
  Score best_;
  const std::vector<std::int64_t> numbers_;  // of micro-batches
  RoughModel model_;
  StageTimers timers_;
  std::vector<std::vector<int>> cuts_;       // stages by block
  std::vector<std::vector<Groups>> groups_;  // by number of stages
  std::vector<Promise> promises_;
  std::vector<Seed> found_;
};

}  // namespace

std::optional<std::vector<Seed>> best_of_all_skeletons(const Problem& problem, Evaluator& evaluator,
                                                       const Score& best, std::size_t most,
                                                       ClimbBudget& budget) {
  return AllSkeletons(problem, evaluator, best, budget).run(most);
}

}  // namespace agpcs
